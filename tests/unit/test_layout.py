"""What keeps the package easy to find one's way in: its arrows, its size, and no language or lesson in its code."""

import ast
import re
import subprocess
import sys

import pytest

import book
from tests.unit.conftest import DATA

ROOT = DATA.parent.parent
PACKAGE = ROOT / "book"
MODULES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.py"))}
MOST_LINES, MOST_LINES_OF_A_MODULE, MOST_MODULES = 2769, 250, 15
# A module may import those that stand before it; those in one pair of brackets do not know each other.
ORDER = [
    ["model"],
    ["played"],
    ["asking"],
    ["files"],
    ["texts"],
    ["runs"],
    ["sources"],
    ["machine"],
    ["check"],
    ["execute"],
    ["site"],
]
ORDER += [["elements"], ["directives"], ["extension"], ["__main__"]]
NOT_FOR = {
    "site": {"execute", "machine"},
    "extension": {"execute", "machine"},
    "elements": {*MODULES} - {"elements", "model"},
}


def imported(module):
    """The modules of the package that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module])):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "book"):
            name = (node.module or "").removeprefix("book").strip(".")
            found |= {name} if name else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("book.") for alias in node.names if alias.name.startswith("book")}
    return found - {"__version__"}


def test_imports_point_one_way():
    before = set()
    for level in ORDER:
        for module in level:
            assert imported(module) <= before - NOT_FOR.get(module, set()), module
        before |= set(level)
    assert before == set(MODULES) - {"__init__"}


def test_the_docstring_shows_these_arrows():
    line = book.__doc__.split("Imports point one way: ")[1].split(".")[0]
    assert [name for level in ORDER for name in level] == re.findall(r"\w+", line)


def test_the_package_stays_small():
    lines = {name: len(text.splitlines()) for name, text in MODULES.items()}
    assert len(lines) - 1 <= MOST_MODULES
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_MODULE} == {}
    assert sum(lines.values()) <= MOST_LINES


NAMES = re.compile(
    r"(?<![\w-])(%s)(?![\w-])|\b\d\d_[a-z]"
    % "|".join(sorted(p.parent.name for p in ROOT.glob("notebooks/*/edition.yml")))
)


def strings(text):
    """The strings that Python code works with: not its docstrings, nor sentences, in which a name is an example."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if " " not in node.value:
                yield node.value


@pytest.mark.parametrize("module", MODULES)
def test_no_edition_or_lesson_has_its_name_in_code(module):
    assert [text for text in strings(MODULES[module]) if NAMES.search(text)] == []


SCRIPTS = [*PACKAGE.glob("templates/*.html"), *PACKAGE.glob("static/*.js"), *PACKAGE.glob("static/*.css")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_edition_or_lesson_has_its_name_in_templates_and_scripts(path):
    code = re.sub(r"\{#.*?#\}|/\*.*?\*/|^\s*//.*?$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    quoted = re.findall(r"""["'`/]([^"'`\s]*)(?=["'`/])""", code)
    assert [text for text in quoted if NAMES.search(text)] == []


def test_the_search_for_names_finds_them():
    assert [text for text in strings('a = "en"\nb = f"notebooks/zh/{a}"') if NAMES.search(text)] == [
        "en",
        "notebooks/zh/",
    ]
    assert NAMES.search("04_data_parallel") and not NAMES.search("length")


def test_the_small_book_has_the_settings_of_the_real_one():
    """But for the addresses of pages that have moved."""
    ours, real = ((folder / "_config.yml").read_text("utf-8") for folder in (DATA / "minibook", ROOT))
    real = "".join(line for line in real.splitlines(keepends=True) if "moved" not in line)
    assert ours.partition("\nparse:")[2] == real.partition("\nparse:")[2] != ""


def test_check_imports_nothing_heavy():
    """The command line answers soon: PyTorch, Sphinx and the engine of notebooks are imported by who needs them."""
    heavy = "{'torch', 'sphinx', 'nbclient', 'matplotlib', 'IPython', 'jupyter_client', 'livereload'}"
    code = f"import sys, book.__main__; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
