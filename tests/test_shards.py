"""An execution divided over machines: its shards, put together, are the one run."""

import json
import subprocess

import pytest
import yaml

from book.lessons import select
from book.runs import recorded
from book.shards import divide
from tests.conftest import copy_repository, run_book, set_code

FEW = ("01_device", "02_random_dataset", "03_model")


@pytest.fixture
def machines(tmp_path):
    """Three copies of a book with three lessons, which share nothing."""
    copies = [copy_repository(tmp_path / name) for name in ("one", "two", "three")]
    for copy in copies:
        toc = yaml.safe_load((copy / "_toc.yml").read_text(encoding="utf-8"))
        few = {"format": toc["format"], "root": toc["root"], "chapters": [{"file": f"notebooks/en/{n}"} for n in FEW]}
        (copy / "_toc.yml").write_text(yaml.safe_dump(few), encoding="utf-8")
    return copies


def without_times(run):
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    for provenance in record["lessons"].values():
        del provenance["executed"], provenance["seconds"]
    return record


def test_shards_put_together_are_the_one_run(machines):
    one, two, three = machines
    shards = []
    for number, copy in ((1, one), (2, two)):
        done = run_book(copy, "execute", "--shard", f"{number}/2")
        assert done.returncode == 0, done.stderr
        shards.append(copy / done.stdout.splitlines()[-1].removeprefix("shard: "))
    assert all(len(list(shard.iterdir())) == 3 for shard in shards)

    assert "en/01_device: no shard has" in run_book(three, "merge", str(shards[0])).stderr + (
        run_book(three, "merge", str(shards[1])).stderr
    )
    assert not (three / "_build" / "run").exists()
    assert run_book(three, "merge", *map(str, shards)).stdout == "merged: _build/run\n"
    merged = (three / "_build" / "run").rename(three / "merged")
    assert run_book(three, "execute").returncode == 0
    for name in FEW:
        for edition in ("en", "zh"):
            path = f"{edition}/{name}.ipynb"
            assert (merged / path).read_bytes() == (three / "_build" / "run" / path).read_bytes()
    assert without_times(merged) == without_times(three / "_build" / "run")

    twice = run_book(three, "merge", str(shards[0]), str(shards[0]))
    assert twice.returncode == 1 and "executed by two of the shards" in twice.stderr
    set_code(three, "01_device", "other-device", "print('something else')")
    other = run_book(three, "merge", *map(str, shards))
    assert (
        other.returncode == 1 and "the shards executed other code than is here; merge at their commit" in other.stderr
    )

    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "Begin"]):
        subprocess.run(["git", *command], cwd=two, check=True)
    assert run_book(two, "execute", "--shard", "2/2").returncode == 0
    mixed = run_book(three, "merge", *map(str, shards))
    assert mixed.returncode == 1 and "error: the shards are of different commits: " in mixed.stderr


def test_work_is_divided_evenly():
    jobs = [(gpus, lesson) for gpus in (1, 2, 8) for lesson in select()]
    seconds = {id: provenance["seconds"] for run in recorded() for id, provenance in run.lessons.items()}
    assert set(seconds) == {lesson.id for lesson in select()}, "a recorded run of the whole book is shipped"
    for count in (1, 2, 5, 100):
        shards = divide(jobs, count)
        assert sorted(job for shard in shards for job in shard) == sorted(jobs)
        assert len(shards) == count
        load = [sum(seconds[lesson.id] for _, lesson in shard) for shard in shards]
        assert max(load) - min(load) <= max(seconds.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["execute", "--shard", "3/2"], "which part of how many, such as 2/4"),
        (["execute", "--shard", "1/2", "03_model"], "--shard divides all lessons in both editions; name none"),
        (["execute", "--shard", "1/2", "--gpus", "1000"], "--gpus 1000 asks for more GPUs than this machine shows"),
        (["merge", "nowhere"], "nowhere: no shard is there; make one with: python -m book execute --shard 1/2"),
    ],
)
def test_what_cannot_be(tmp_path, arguments, message):
    done = run_book(copy_repository(tmp_path / "copy"), *arguments)
    assert done.returncode and message in done.stderr and "Traceback" not in done.stderr
