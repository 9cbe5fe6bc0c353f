"""What keeps the repository in order: linters, one version, one set of pins."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import book
from tests.conftest import ROOT

BIN = Path(sys.executable).parent


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


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
    pins = read("tests/requirements.txt").splitlines()
    for hook in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]:
        assert set(hook.get("additional_dependencies", [])) <= set(pins)


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
