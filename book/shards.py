"""Splits an execution over several machines, and puts what they executed together into one run.

A shard is a folder, ``_build/shards/2-of-4``, with a file for each lesson that it executed, named by the key under
which the cache keeps it. Shards share nothing while they run: each works out for itself which lessons are its own.
"""

import json
import shutil

from . import machine
from .execute import RUN, RUNS, read_lessons, results_of, source_hash, write_json, write_run
from .lessons import BUILD, BookError, select, shown
from .runs import expected_seconds

SHARDS = BUILD / "shards"


def execute_shard(number, count, gpu_counts, force, cold):
    """Executes shard `number` of `count`, for each of these numbers of GPUs.

    Returns its folder, and a list of (lesson, its provenance, whether it was executed just now). Raises BookError if
    any lesson fails, or asks for more GPUs than there are.
    """
    mine = divide([(gpus, lesson) for gpus in gpu_counts for lesson in select()], count)[number - 1]
    if needed := {gpus for gpus, _ in mine if gpus is not None}:
        machine.choose_gpus(max(needed))  # all that is asked for must be there before anything starts
    folder = SHARDS / f"{number}-of-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    executed = []
    for gpus in dict(mine):
        sources = read_lessons(sorted(lesson for count, lesson in mine if count == gpus))
        results, fresh = results_of(sources, gpus, force, cold)
        for lesson, result in results.items():
            write_json(folder / f"{result['key']}.json", {**result, "commit": machine.commit()})
            executed.append((lesson, result["provenance"], lesson in fresh))
    return folder, executed


def divide(jobs, count):
    """Divides jobs, (number of GPUs, lesson), into shards that take about as long as each other.

    The longest first, each to the shard that has least to do so far. Every machine comes to the same result, since
    all know the same recorded runs.
    """
    seconds = expected_seconds()
    shards = [[] for _ in range(count)]
    load = [0.0] * count
    for job in sorted(jobs, key=lambda job: -seconds(job[1].id)):
        least = load.index(min(load))
        shards[least].append(job)
        load[least] += seconds(job[1].id)
    return shards


def merge(folders):
    """Puts shards together: into the run that the pages show, or with several numbers of GPUs into one run for each.

    Returns the folders of the runs. Raises BookError, and leaves all runs as they were, if the shards are not of one
    commit, of the code that is here and of the same versions, or if a lesson is missing or there twice.
    """
    results = [read_result(path) for folder in folders for path in result_files(folder)]
    agree("commits", [str(result["commit"]) for result in results])
    agree("versions", [json.dumps(result["provenance"]["versions"]) for result in results])
    sources = read_lessons(select())
    runs = {}
    for result in results:
        run = runs.setdefault(len(result["provenance"]["gpus"]), {})
        if result["lesson"] in run:
            raise BookError(f"{result['lesson']}: executed by two of the shards")
        run[result["lesson"]] = result
    for gpus, run in runs.items():
        for lesson, notebook in sources.items():
            if lesson.id not in run:
                raise BookError(f"{lesson.id}: no shard has executed it with {gpus} GPUs; is a shard missing?")
            if run[lesson.id]["sources"] != source_hash(notebook):
                raise BookError(f"{lesson.id}: the shards executed other code than is here; merge at their commit")
    targets = {gpus: RUN if len(runs) == 1 else RUNS / f"{gpus}-gpus" for gpus in sorted(runs)}
    for gpus, target in targets.items():
        write_run(target, sources, {lesson: runs[gpus][lesson.id] for lesson in sources})
    return list(targets.values())


def result_files(folder):
    found = sorted(folder.glob("*.json"))
    if not found:
        raise BookError(f"{shown(folder)}: no shard is there; make one with: python -m book execute --shard 1/2")
    return found


def read_result(path):
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        for key in ("lesson", "sources", "provenance", "outputs", "commit"):
            result[key]
        return result
    except (ValueError, KeyError, TypeError) as error:
        raise BookError(f"{shown(path)}: not of a shard: {error!r}") from None


def agree(what, values):
    if len(set(values)) > 1:
        raise BookError(f"the shards are of different {what}: {', '.join(sorted(set(values)))}")
