"""The command line: python -m book --help"""

import argparse
import gc
import re
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from . import check as checking
from . import machine
from .lessons import BUILD, EDITIONS, BookError, lesson_names, page_names, select, shown

DESCRIPTION = """\
Makes the book "One Model, Many GPUs": executes its lessons, renders both editions.

  python -m book build                     execute what changed, then render: _build/html
  python -m book execute 04_data_parallel  execute one lesson, in both languages
  python -m book execute --gpus 2          execute with two GPUs shown to CUDA
  python -m book execute --gpus 1,2,8      one run for each of these counts: _build/runs
  python -m book execute --shard 2/4       the second quarter of the work; python -m book merge puts quarters together
  python -m book runs                      the runs of this machine, and the recorded ones
  python -m book record 8-gpus             let the site show that run beside its own
  python -m book diff run 8-gpus           which cells differ between two runs
  python -m book render                    pages from the last execution; starts no kernel
  python -m book serve                     look at the book; pages follow when files change
  python -m book check                     the sources are whole and the editions agree
"""


def main():
    gc.set_threshold(100_000, 50, 100)  # asked for at every 700th object, the collector takes half a second of a build
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        arguments.run(arguments)
    except BookError as error:
        for line in str(error).splitlines():
            print(line if line.startswith(" ") else f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk, say
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; the last run and the last site are as they were", file=sys.stderr)
        sys.exit(130)


def parser():
    top = argparse.ArgumentParser(
        "python -m book", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(name, run, help):
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        return sub

    def execution(sub):
        sub.add_argument(
            "--gpus", type=gpu_counts, metavar="N", help="show just the first N GPUs to CUDA; 0 hides them all"
        )
        sub.add_argument("--force", action="store_true", help="execute also what cannot have changed")
        sub.add_argument("--cold", action="store_true", help="start each kernel afresh, not from a warm process")

    execute_command = command("execute", execute, "Execute lessons; what cannot have changed is not executed again.")
    execute_command.add_argument(
        "lessons", nargs="*", metavar="LESSON", help="a lesson's name, such as 04_data_parallel; default: all"
    )
    execute_command.add_argument("--language", choices=EDITIONS, help="one edition only")
    execute_command.add_argument(
        "--shard", type=shard, metavar="I/N", help="part I of N of all lessons, for several machines to share"
    )
    execution(execute_command)
    merge_command = command("merge", merge, "Put shards together into a run.")
    merge_command.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="such as _build/shards/1-of-4")
    command("runs", runs, "List the runs of this machine and the recorded ones.")
    run_help = "a run's name, as `runs` lists it, or the path of its file or folder"
    record_command = command("record", record, "Record what the site shows of a run, in the folder runs.")
    record_command.add_argument("which", metavar="RUN", help=run_help)
    diff_command = command(
        "diff", diff, "Say which cells put out something else in the second run; exit code 1 if any."
    )
    diff_command.add_argument("first", metavar="RUN", help=run_help)
    diff_command.add_argument("second", metavar="RUN", help=run_help)
    command("render", render, "Render both editions from the last execution.")
    execution(command("build", build, "Check, execute and render."))
    serve_command = command("serve", serve, "Build, show the book in a browser, and build again when a file changes.")
    serve_command.add_argument("--port", type=int, default=8000, help="default: 8000")
    command("check", check, "Check pairs, links, and that notebooks hold no outputs.")
    tidy = command(
        "tidy", lambda a: checking.tidy(select(a.lessons)), "Remove outputs and editor metadata from notebooks."
    )
    tidy.add_argument("lessons", nargs="*", metavar="LESSON", help="default: all")
    translated_command = command(
        "translated", translated, "Note that a Chinese text is up to date with the English one."
    )
    translated_command.add_argument("name", metavar="NAME", help="a lesson or a page, such as 01_device or index")
    translated_command.add_argument("cells", nargs="*", metavar="CELL", help="cells of the lesson; default: all")
    return top


def gpu_counts(text):
    """[2] from "2", [1, 2, 8] from "1,2,8", and from "all" 1 to as many as there are."""
    if text == "all":
        return list(range(1, len(machine.gpus()) + 1)) or [1]
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError("a number of GPUs, several such as 1,2,8, or all")
    return [int(count) for count in text.split(",")]


def shard(text):
    """(2, 4) from "2/4"."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError("which part of how many, such as 2/4")
    return int(found[1]), int(found[2])


@contextmanager
def alone():
    """Keeps two builds from writing to _build at once; the lock goes with the process, however that ends."""
    from filelock import FileLock, Timeout

    BUILD.mkdir(exist_ok=True)
    try:
        with FileLock(BUILD / "lock", timeout=0):
            yield
    except Timeout:
        raise BookError("another build is at work in this folder; wait until it has ended, or stop it") from None


def execute(arguments):
    if arguments.shard and (arguments.lessons or arguments.language):
        raise BookError("--shard divides all lessons in both editions; name none")
    with alone():
        if arguments.shard:
            run_shard(arguments)
        else:
            run_lessons(arguments, arguments.lessons, [arguments.language] if arguments.language else EDITIONS)


def run_shard(arguments):
    from .shards import execute_shard

    folder, executed = execute_shard(*arguments.shard, arguments.gpus or [None], arguments.force, arguments.cold)
    show_executed(executed)
    print(f"shard: {shown(folder)}")


def merge(arguments):
    from .shards import merge as run

    with alone():
        for folder in run(arguments.folders):
            print(f"merged: {shown(folder)}")


def run_lessons(arguments, names=(), editions=EDITIONS, meanwhile=None):
    """Executes lessons: into the run that the pages show, or with several GPU counts into one for each."""
    from .execute import RUN, RUNS
    from .execute import execute as run

    counts = arguments.gpus or [None]
    if counts != [None]:
        machine.choose_gpus(max(counts))  # all that is asked for must be there before anything starts
    for count in counts:
        folder = RUN if len(counts) == 1 else RUNS / f"{count}-gpus"
        show_executed(run(names, editions, count, arguments.force, arguments.cold, folder, meanwhile))


def show_executed(executed):
    """Prints what was executed, or was known; executed: (lesson, its provenance, whether it was executed just now)."""
    from rich.console import Console
    from rich.table import Table

    from .runs import machine_name

    table = Table("lesson", "edition", "seconds", "device", "")
    for lesson, provenance, fresh in executed:
        when = "" if fresh else f"unchanged since {provenance['executed'][:10]}"
        table.add_row(lesson.name, lesson.edition, f"{provenance['seconds']:.1f}", machine_name(provenance), when)
    Console().print(table)


def runs(arguments):
    from rich.console import Console
    from rich.table import Table

    from .runs import local, machine_name, recorded, stale

    table = Table("run", "executed", "device", "torch", "lessons", "")
    for where, found in (("", local()), ("recorded", recorded())):
        for run in found:
            last = max(run.lessons.values(), key=lambda provenance: provenance["executed"])
            machines = sorted({machine_name(provenance) for provenance in run.lessons.values()})
            old = f"{len(stale(run))} cells have changed since" if where and stale(run) else ""
            date, torch = last["executed"][:10], last["versions"]["torch"]
            remark = ", ".join(filter(None, (where, old)))
            table.add_row(run.name, date, ", ".join(machines), torch, str(len(run.lessons)), remark)
    Console().print(table)


def record(arguments):
    from .runs import record as run

    with alone():
        print(f"recorded: {shown(run(arguments.which))}")


def diff(arguments):
    from .runs import compare, find

    found = compare(find(arguments.first), find(arguments.second))
    for lesson, cell, difference in found:
        print(f"{lesson}, cell {cell}:\n{difference}\n")
    print(f"cells that differ: {len(found)}")
    sys.exit(bool(found))


def render(arguments):
    with alone():
        render_pages()


def render_pages(renderer=None):
    from .render import SITE
    from .render import render as run

    print("rendered" if run(renderer) else "already rendered: nothing has changed")
    print(f"The book: {SITE / 'index.html'}")


def build(arguments):
    from .render import end_renderer, start_renderer
    from .stage import prepare

    if arguments.gpus and len(arguments.gpus) > 1:
        raise BookError("the pages show one run; for several GPU counts: python -m book execute --gpus 1,2,8")
    check(arguments)
    started = []

    def meanwhile():
        prepare()
        started.append(start_renderer())
        return {started[0].pid}

    with alone():
        try:
            run_lessons(arguments, meanwhile=meanwhile)
            if not started:  # nothing to execute; most likely a text has changed
                started.append(start_renderer())
            render_pages(*started)
        finally:
            for renderer in started:
                end_renderer(renderer)


def check(arguments):
    for line in checking.check():
        print(f"note: {line}")


def serve(arguments):
    """Builds once, then after every change of a source; a browser that shows a page reloads it."""
    from livereload import Server

    from .lessons import ROOT
    from .render import SITE

    def rebuild():
        try:
            build(argparse.Namespace(gpus=None, force=False, cold=False))
        except BookError as error:
            print(f"error: {error}", file=sys.stderr)

    rebuild()
    server = Server()
    sources = ["_config.yml", "_toc.yml", "notebooks/*/*.ipynb", "book/pages/*/*", "book/static/*", "book/templates/*"]
    for pattern in sources:
        server.watch(str(ROOT / pattern), rebuild)
    server.serve(root=str(SITE), port=arguments.port, open_url_delay=None)


def translated(arguments):
    if arguments.name in page_names():
        checking.page_translated(arguments.name)
    elif arguments.name in lesson_names():
        checking.translated(arguments.name, arguments.cells)
    else:
        raise BookError(f"no lesson or page is called {arguments.name}")


if __name__ == "__main__":
    main()
