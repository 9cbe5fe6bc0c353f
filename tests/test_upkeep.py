"""What keeps the repository in order: linters, one version, one set of pins."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import book
from tests.conftest import ROOT

BIN = Path(sys.executable).parent


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


PROJECT = tomllib.loads(read("pyproject.toml"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
HOOKS = {hook["id"]: hook for hook in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]}


def english_files():
    folders = ("book", "notebooks/en", "tests", "tools", "warm-kernel", ".github")
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    kinds = (".py", ".md", ".ipynb", ".yml", ".sh", ".js", ".css", ".toml")
    return [str(f) for f in files if f.suffix in kinds and "zh" not in f.parts and not f.name.endswith(".zh.md")]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["codespell", *english_files()]],
    ids=lambda c: " ".join(c[:2]),
)
def test_linters_find_nothing(command):
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True)
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
