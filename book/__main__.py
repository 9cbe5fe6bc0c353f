"""The command line: python -m book --help"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from . import check as rules
from . import files, machine, runs, site, sources, texts
from .model import Book, BookError, Lesson


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, stop)
    try:
        sys.exit(commands(prog_name="python -m book", standalone_mode=False))
    except click.ClickException as error:  # a mistake in the command itself
        error.show()
        sys.exit(error.exit_code)
    except (BookError, OSError) as error:
        sys.exit(site.said_of(error))
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; the last run and the last site are as they were", file=sys.stderr)
        exec("")  # or Python, if it was in an exec() when interrupted, ends as though nobody had caught that
        sys.exit(130)


def stop(number: int, frame: Any) -> None:
    """At Ctrl-C: once is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stopping …", file=sys.stderr)
    raise KeyboardInterrupt


def must_be_good(book: Book, ahead: bool = False, strict: bool = False) -> None:
    """Prints notes; raises BookError at other problems. ahead: lessons may be unfinished. strict: all must be tidy."""
    with texts.keeping(book.root / "_build" / "found.json", site.LOADED):
        found = [*rules.check(book, ahead), *(replace(problem, note=not strict) for problem in rules.untidy(book))]
        found += [replace(problem, note=ahead) for problem in rules.pairs(book)]
    for problem in found:
        if problem.note:
            print(f"note: {problem}")
    if errors := [problem for problem in found if not problem.note]:
        raise BookError(*errors)


def build_book(count: int | None = None, force: bool = False, cold: bool = False, ahead: bool = False) -> None:
    """Checks, executes and renders the book that the working folder is in."""
    site.warm_up(sources.find_root())
    must_be_good(book := sources.load(), ahead)
    with files.lock(book.root / "_build"):
        execute_lessons(book, book.lessons, count, force, cold, runs.run_folder(book.root))
        render_pages(book)


def execute_lessons(book: Book, lessons: list[Lesson], count: int | None, force: bool, cold: bool, into: Path) -> None:
    """Executes lessons, completes the run in this folder, and prints what was done."""
    from .execute import Execution

    results, fresh = Execution(book, count, cold).run(lessons, force)
    runs.write_run(book, into, results)
    made = [(lesson, results[lesson].provenance) for lesson in fresh]
    rows = [(lesson.name, lesson.edition, f"{at.seconds:.1f}", at.machine) for lesson, at in made]
    print_table(("lesson", "edition", "seconds", "device"), rows)
    print(f"lessons: {len(fresh)} executed, {len(lessons) - len(fresh)} unchanged")
    for lesson, cell in runs.noisy(results):
        print(f"note: {lesson.where(cell)}: writes to stderr, and the page shows it")


def render_pages(book: Book) -> None:
    done = "rendered" if site.render(book) else "already rendered: nothing has changed"
    print(f"{done}\nThe book: {site.site_folder(book.root) / 'index.html'}")


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    if rows:
        Console().print(table)


@click.group()
def commands() -> None:
    """Makes the book "One Model, Many GPUs": executes its lessons, renders all editions.

    \b
    python -m book execute --gpus 1,2,8            one run for each of these counts: _build/runs
    python -m book record run                      let the site show that run beside its own
    python -m book new 18_name --like 07_replicas  begin a lesson
    """


def gpu_counts(context: click.Context, option: click.Parameter, text: str | None) -> list[int | None]:
    """[2] from "2", [1, 2, 8] from "1,2,8", and from "all" 1 to as many as there are."""
    if text == "all":
        return [*range(1, len(machine.gpus()) + 1)] or [1]
    if text and not all(part.isdecimal() for part in text.split(",")):
        raise click.BadParameter("a number of GPUs, several such as 1,2,8, or all")
    return [int(count) for count in text.split(",")] if text else [None]


LESSONS = click.argument("names", nargs=-1, metavar="[LESSON]...")
GPUS = click.option("--gpus", callback=gpu_counts, metavar="N", help="Show just the first N GPUs to CUDA; 0 hides all.")
FORCE = click.option("--force", is_flag=True, help="Execute also what cannot have changed.")
COLD = click.option("--cold", is_flag=True, help="Start each kernel afresh, not from a warm process.")


@commands.command()
@GPUS
@FORCE
@COLD
def build(gpus: list[int | None], force: bool, cold: bool) -> None:
    """Check, execute and render."""
    if len(gpus) > 1:
        raise BookError("the pages show one run; for several GPU counts: python -m book execute --gpus 1,2,8")
    build_book(gpus[0], force, cold)


@commands.command()
@LESSONS
@click.option("--edition", help="One edition only, by the name of its folder.")
@GPUS
@FORCE
@COLD
def execute(names: list[str], edition: str | None, gpus: list[int | None], force: bool, cold: bool) -> None:
    """Execute lessons; what cannot have changed is not executed again."""
    book = sources.load()
    if problems := [*rules.settings(book)]:
        raise BookError(*problems)
    if edition and edition not in book.editions:
        raise BookError(f"no edition is called {edition}; there are: {', '.join(book.editions)}")
    lessons = sources.select(book, names, [edition] if edition else None)
    machine.choose_gpus(max(count or 0 for count in gpus))  # all must be there before anything starts
    with files.lock(book.root / "_build"):
        for count in gpus:
            folder = runs.runs_folder(book.root) / f"{count}-gpus" if len(gpus) > 1 else runs.run_folder(book.root)
            execute_lessons(book, lessons, count, force, cold, folder)
            paths = [f"{files.relative(folder, book.root)}/{lesson.id}.ipynb" for lesson in lessons]
            print("outputs:", *paths[:1], *["and so on"] * (len(paths) > 1))


@commands.command()
def render() -> None:
    """Render all editions from the last execution."""
    site.warm_up(sources.find_root())
    with files.lock((book := sources.load()).root / "_build"):
        render_pages(book)


@commands.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def serve(port: int) -> None:
    """Build, and again when a file changes; the browser shows the new page, or what is wrong."""
    site.serve(sources.find_root(), port, lambda: build_book(ahead=True))


@commands.command()
def check() -> None:
    """Check pairs, links, what lessons need, and that notebooks are tidy."""
    must_be_good(sources.load(), strict=True)


@commands.command("runs")
def list_runs() -> None:
    """List the runs of this machine and the recorded ones."""
    book, rows = sources.load(), []
    for run in [run for run in [*runs.local(book.root), *book.recorded] if run.lessons]:
        last = max(run.lessons.values(), key=lambda provenance: provenance.executed)
        machines = ", ".join(sorted({provenance.machine for provenance in run.lessons.values()}))
        remark = f"recorded; {len(runs.stale(book, run))} cells have changed since" if run in book.recorded else ""
        rows.append((run.name, last.executed[:10], machines, last.versions["torch"], str(len(run.lessons)), remark))
    print_table(("run", "executed", "device", "torch", "lessons", ""), rows)


@commands.command()
@click.argument("run")
@click.option("--force", is_flag=True, help="Replace a recorded run of another execution.")
def record(run: str, force: bool) -> None:
    """Record what the site shows of a run, in the folder runs."""
    book = sources.load()
    with files.lock(book.root / "_build"):
        print(f"recorded: {files.relative(runs.record(book, run, force), book.root)}")


@commands.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
def diff(first: str, second: str) -> int:
    """Say which cells put out something else in the second run, unless they measure time; exit code 1 if any."""
    book = sources.load()
    found = runs.compare(book, runs.find(book, first), runs.find(book, second))
    for lesson, cell, difference in found:
        print(f"{lesson}, cell {cell}:\n{difference}\n")
    print(f"cells that differ: {len(found)}")
    return int(bool(found))


@commands.command()
@click.argument("name")
@click.option("--like", required=True, metavar="LESSON", help="The lesson that it is like.")
def new(name: str, like: str) -> None:
    """Begin a lesson in every edition, with the cells of another."""
    print("wrote:", *sources.new_lesson(sources.load(), name, like))


@commands.command()
@click.argument("lesson")
@click.argument("old")
@click.argument("new")
def rename_cell(lesson: str, old: str, new: str) -> None:
    """Give a cell another id in all editions; links to it follow."""
    print("wrote:", *sources.rename_cell(sources.load(), lesson, old, new))


@commands.command()
@LESSONS
def tidy(names: list[str]) -> None:
    """Remove outputs from notebooks, and write shared cells into them."""
    print("wrote:", *sources.tidy(sources.load(), names) or ["nothing; all are tidy"])


@commands.command()
@click.argument("page")
@click.argument("cells", nargs=-1)
def translated(page: str, cells: list[str]) -> None:
    """Note that a translation is up to date with its source: cells of a lesson, or all of a page."""
    print("noted in:", *sources.mark_translated(sources.load(), page, cells))


@commands.command("try")
@LESSONS
def try_lessons(names: list[str]) -> int:
    """Run the tests of lessons: alone, exercises, wrong answers, numbers."""
    lessons = " or ".join({lesson.name for lesson in sources.select(sources.load(), names)})
    command = [sys.executable, "-m", "pytest", "-n0", "-rs", "--tb=short", "tests/lessons", "-k", lessons]
    return subprocess.run(command, cwd=sources.find_root()).returncode


if __name__ == "__main__":
    main()
