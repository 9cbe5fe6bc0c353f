"""The command line: python -m book --help"""

import argparse
import signal
import sys

from . import check as checking
from .lessons import EDITIONS, BookError, lesson_names, page_names, select

DESCRIPTION = """\
Makes the book "One Model, Many GPUs": executes its lessons, renders both editions.

  python -m book build                     execute what changed, then render: _build/html
  python -m book execute 04_data_parallel  execute one lesson, in both languages
  python -m book execute --gpus 2          execute with two GPUs shown to CUDA
  python -m book render                    pages from the last execution; starts no kernel
  python -m book serve                     look at the book; pages follow when files change
  python -m book check                     the sources are whole and the editions agree
"""


def main():
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        arguments.run(arguments)
    except BookError as error:
        for line in str(error).splitlines():
            print(line if line.startswith(" ") else f"error: {line}", file=sys.stderr)
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
            "lessons", nargs="*", metavar="LESSON", help="a lesson's name, such as 04_data_parallel; default: all"
        )
        sub.add_argument("--language", choices=EDITIONS, help="one edition only")
        sub.add_argument(
            "--gpus", type=gpu_count, metavar="N", help="show just the first N GPUs to CUDA; 0 hides them all"
        )

    execution(command("execute", execute, "Execute lessons; what cannot have changed is not executed again."))
    command("render", render, "Render both editions from the last execution.")
    build_command = command("build", build, "Check, execute and render.")
    build_command.add_argument(
        "--gpus", type=gpu_count, metavar="N", help="show just the first N GPUs to CUDA; 0 hides them all"
    )
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


def gpu_count(text):
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError("a number of GPUs, 0 or more")
    return count


def execute(arguments):
    run_lessons(arguments.lessons, [arguments.language] if arguments.language else EDITIONS, arguments.gpus)


def run_lessons(names, editions, gpus):
    from rich.console import Console
    from rich.table import Table

    from .execute import execute as run

    table = Table("lesson", "edition", "seconds", "device", "")
    for lesson, provenance, fresh in run(names, editions, gpus):
        when = "" if fresh else f"unchanged since {provenance['executed'][:10]}"
        table.add_row(lesson.name, lesson.edition, f"{provenance['seconds']:.1f}", device(provenance), when)
    Console().print(table)


def device(provenance):
    if provenance["gpus"]:
        return f"{len(provenance['gpus'])} × {provenance['gpus'][0]}"
    return provenance["accelerator"] or "cpu"


def render(arguments):
    from .render import SITE
    from .render import render as run

    print("rendered" if run() else "already rendered: nothing has changed")
    print(f"The book: {SITE / 'index.html'}")


def build(arguments):
    check(arguments)
    run_lessons((), EDITIONS, arguments.gpus)
    render(arguments)


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
            build(argparse.Namespace(gpus=None))
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
