"""What sends the book to GPUs elsewhere, as far as that can be checked without an account: see runners."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from tests.conftest import ROOT, program

RUNNERS = ROOT / "runners"
SCRIPTS = [RUNNERS / "kaggle" / "vouch.sh", RUNNERS / "sky.yaml", RUNNERS / "slurm.sh"]
BIN = Path(sys.executable).parent


def test_each_runner_is_tested_here():
    assert {path.relative_to(RUNNERS).parts[0] for path in SCRIPTS} == {path.name for path in RUNNERS.iterdir()}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_three_lines_say_what_it_needs_what_it_costs_and_how_to_start_it(path):
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#!")]
    assert [line.partition(":")[0] for line in lines[1:4]] == ["# Needs", "# Costs", "# Start"]
    assert str(path.relative_to(ROOT)) in lines[3]


@pytest.mark.parametrize("path", SCRIPTS[1:], ids=lambda path: path.name)
def test_a_runner_vouches_by_commands_of_the_book(path):
    text = path.read_text("utf-8")
    text = yaml.safe_load(text)["run"] if path.suffix == ".yaml" else text
    commands = [line.split("#")[0].split() for line in text.splitlines()]
    assert [line for line in commands if line][-2:] == [["make", "gpu-check"], ["sh", "tools/record_run.sh"]]


# SkyPilot

KEYS = {"name", "workdir", "num_nodes", "resources", "setup", "run"}  # of docs.skypilot.co: reference, task YAML


def test_the_file_for_skypilot(tmp_path):
    task = yaml.safe_load(SCRIPTS[1].read_text("utf-8"))
    assert set(task) <= KEYS and set(task["resources"]) <= {"accelerators", "disk_size"}
    for step in ("setup", "run"):
        script = tmp_path / f"{step}.sh"
        script.write_text(f"#!/bin/sh\n{task[step]}")
        done = subprocess.run([BIN / "shellcheck", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# The parser finds a misspelt key; then the file, as it is and with other GPUs than those that it names.
PARSE = """
import sys, yaml
from sky import Task, exceptions
task = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
try:
    Task.from_yaml_config({**task, "workdirs": "."})
except exceptions.InvalidSkyPilotConfigError as error:
    print("refused")
for gpus in (task["resources"]["accelerators"], "L4:1", "H100:8"):
    found = Task.from_yaml_config({**task, "resources": {**task["resources"], "accelerators": gpus}})
    print(found.name, *(resources.accelerators for resources in found.resources))
"""


def test_skypilots_own_parser_reads_the_file():
    python = client("skypilot")
    done = subprocess.run([python, "-c", PARSE, SCRIPTS[1]], cwd=ROOT, capture_output=True, text=True)
    said = ["refused", "vouch {'T4': 2}", "vouch {'L4': 1}", "vouch {'H100': 8}"]
    assert done.stdout.splitlines() == said, done.stderr


def client(name, *install):
    """The Python of an environment with a service's own client, in _build/clients; skips where there is none."""
    folder = ROOT / "_build" / "clients" / name
    if not (folder / "ready").exists():
        give_up = pytest.fail if install and os.environ.get("CI") else pytest.skip
        if not install:
            give_up("large, and not here: `sh tools/check_skypilot.sh` installs it and runs this test")
        for command in ([sys.executable, "-m", "venv", folder], [folder / "bin" / "pip", "install", "-q", *install]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                give_up(f"{name} could not be installed: {done.stderr.strip().splitlines()[-1]}")
        (folder / "ready").touch()
    return folder / "bin" / "python"


# Kaggle: the script

QUOTA = "Kernel push error: Maximum weekly GPU quota of 30.00 hours reached."
SENT = "Kernel version 1 successfully pushed.  Please check progress at https://www.kaggle.com/code/somebody/vouch"
STATUS = 'somebody/vouch-for-the-book has status "KernelWorkerStatus.%s"'

# A stand-in for Kaggle's client: says what the test wants, and keeps what it is sent.
CLIENT = """
case "$2" in
push) cp -r "$4" sent; echo "$PUSH" ;;
status) echo x >>asked; if [ "$(wc -l <asked)" = 1 ]; then echo "$FIRST"; else echo "$LATER"; fi ;;
output) cp -r answer/. "$5" ;;
esac
"""


def git(folder, *arguments):
    command = ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A clone with what vouches in it, and stand-ins for the rest of the book, that finds no `kaggle` but our own."""
    folder = tmp_path / "clone"
    shutil.copytree(RUNNERS, folder / "runners")
    (folder / "runs").mkdir()
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "record_run.sh", folder / "tools")
    (folder / ".gitignore").write_text("/_build/\n")
    (folder / "Makefile").write_text(
        'gpu-check:\n\techo checked >"$$MARK"\n\t@test -z "$$RED" || { echo "2 failed"; exit 1; }\n'
    )
    record = 'mkdir -p runs; git rev-parse HEAD | sed "s/\\(.\\{12\\}\\).*/{\\"commit\\": \\"\\1\\"}/" >"runs/$4.json"'
    program(folder / ".venv/bin/python", f'[ "$3" != record ] || {{ {record}; echo "recorded: runs/$4.json"; }}')
    git(folder, "init", "--quiet")
    git(folder, "remote", "add", "origin", folder.as_uri())
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "begin")
    program(tmp_path / "bin" / "kaggle", CLIENT)
    return folder


def vouch(clone, *arguments, verdict="vouched: 2-gpus.json", commit=None, **answers):
    """Runs the script with what Kaggle answers; returns it, and the names of the runs that were recorded."""
    answer = clone / "answer"
    answer.mkdir()
    if verdict is not None:
        (answer / "verdict.txt").write_text(f"{verdict}\n")
    known = (commit or git(clone, "rev-parse", "HEAD"))[:12]
    (answer / "2-gpus.json").write_text(json.dumps({"commit": known}, indent=1))
    said = {"PUSH": SENT, "FIRST": STATUS % "RUNNING", "LATER": STATUS % "COMPLETE", **answers}
    kept = {key: value for key, value in os.environ.items() if key not in ("GITHUB_REPOSITORY", "KAGGLE_USERNAME")}
    paths = f"{clone.parent / 'bin'}:{kept['PATH']}"
    environment = {**kept, "PATH": paths, "KAGGLE_USERNAME": "somebody", "VOUCH_PAUSE": "0", **said}
    command = ["sh", "runners/kaggle/vouch.sh", *arguments]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
    return done, sorted(path.name for path in (clone / "runs").iterdir())


def test_kaggle_brings_back_what_was_recorded(clone):
    done, runs = vouch(clone)
    assert (done.returncode, runs) == (0, ["2-gpus.json"]), done.stderr
    assert done.stdout.splitlines()[-1] == "recorded: runs/2-gpus.json"
    assert [path.name for path in (clone / "_build" / "recorded").iterdir()] == runs  # what the workflow uploads
    sent = json.loads((clone / "sent" / "kernel-metadata.json").read_text())
    assert sent["id"] == "somebody/vouch-for-the-book" and sent["is_private"] == "true"
    settings = json.loads((clone / "sent" / "vouch.ipynb").read_text())["cells"][1]["source"]
    assert [line.strip() for line in settings[1:]] == [
        f'REPOSITORY = "{clone.as_uri()}"',
        f'COMMIT = "{git(clone, "rev-parse", "HEAD")}"',
    ]


@pytest.mark.parametrize(
    "remote, address",
    [
        ("git@github.com:somebody/book.git", "https://github.com/somebody/book.git"),
        ("ssh://git@github.com/somebody/book", "https://github.com/somebody/book"),
        ("https://me:secret@github.com/somebody/book", "https://github.com/somebody/book"),
    ],
)
def test_the_address_that_kaggle_gets_opens_no_door(clone, remote, address):
    git(clone, "remote", "set-url", "origin", remote)
    vouch(clone)
    assert f'REPOSITORY = \\"{address}\\"' in (clone / "sent" / "vouch.ipynb").read_text()


def test_a_clone_of_nothing_is_not_sent(clone):
    git(clone, "remote", "remove", "origin")
    done, runs = vouch(clone)
    assert (done.returncode, runs) == (1, []) and "has no remote called origin" in done.stderr


REFUSALS = {
    "quota": ({"PUSH": QUOTA}, "the quota is used up: Maximum weekly GPU quota of 30.00 hours reached"),
    "sessions": (
        {"PUSH": "Kernel push error: Maximum batch GPU session count of 2 reached."},
        "the quota is used up: Maximum batch GPU session count of 2 reached",
    ),
    "no accelerator": (
        {"PUSH": "Kernel push error: Accelerator NvidiaTeslaT4 is not available."},
        "no accelerator: Accelerator NvidiaTeslaT4 is not available",
    ),
    "no GPUs in the machine": (
        {"verdict": "nothing was vouched: no accelerator with two GPUs: this machine shows 0"},
        "nothing was vouched: no accelerator with two GPUs: this machine shows 0",
    ),
    "account": (
        {
            "PUSH": "You must authenticate before you can call the Kaggle API.\nFollow these steps:\n  kaggle auth login\n"
        },
        "Kaggle does not know this account: set KAGGLE_API_TOKEN",
    ),
    "other": (
        {"PUSH": "a warning\nKernel push error: Notebook not found"},
        "the notebook was not taken: Notebook not found",
    ),
    "silence": ({"PUSH": ""}, "the notebook was not taken: no answer"),
    "failed": (
        {"LATER": STATUS % "ERROR"},
        f"the notebook failed: {STATUS % 'ERROR'}; see https://www.kaggle.com/code/somebody/vouch-for-the-book",
    ),
    "failed, as an older client says it": (
        {
            "LATER": 'x/y has status "error"\nFailure message: "Your notebook was stopped because it used too much disk."'
        },
        'the notebook failed: Failure message: "Your notebook was stopped because it used too much disk."; see '
        "https://www.kaggle.com/code/somebody/vouch-for-the-book",
    ),
    "cancelled": (
        {"FIRST": STATUS % "CANCEL_ACKNOWLEDGED"},
        f"the notebook failed: {STATUS % 'CANCEL_ACKNOWLEDGED'}; see "
        "https://www.kaggle.com/code/somebody/vouch-for-the-book",
    ),
    "no end": (
        {"LATER": STATUS % "RUNNING", "VOUCH_PATIENCE": "1"},
        f"the notebook has not come to its end: {STATUS % 'RUNNING'}; see "
        "https://www.kaggle.com/code/somebody/vouch-for-the-book",
    ),
    "no verdict": (
        {"verdict": None},
        "the notebook left no verdict; see https://www.kaggle.com/code/somebody/vouch-for-the-book",
    ),
    "a check that failed": (
        {"verdict": "nothing was vouched: make gpu-check failed: 2 failed"},
        "nothing was vouched: make gpu-check failed: 2 failed",
    ),
    "no account": ({"KAGGLE_USERNAME": ""}, "KAGGLE_USERNAME is not set"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_kaggle_refuses_is_one_line_and_nothing_is_recorded(clone, name):
    answers, said = REFUSALS[name]
    done, runs = vouch(clone, **answers)
    assert (done.returncode, runs) == (1, [])
    assert done.stderr == f"kaggle: {said}; nothing was recorded\n"
    assert not (clone / "_build" / "recorded").exists()


def test_a_run_of_another_commit_is_not_taken(clone):
    done, runs = vouch(clone, commit="0123456789abcdef")
    assert (done.returncode, runs) == (1, []) and "is not of commit" in done.stderr


def test_a_commit_that_does_not_exist_is_not_sent(clone):
    done, runs = vouch(clone, "no-such-branch")
    assert done.stderr == "kaggle: there is no commit no-such-branch; nothing was recorded\n"
    assert not (clone / "sent").exists()


# Kaggle: its own client, of which only the network is replaced

REAL = """#!{python}
import contextlib, json, os, types
from pathlib import Path
import requests
from kagglesdk.kernels.types import kernels_api_service as api, kernels_enums as enums

class Kernels:
    def save_kernel(self, request):
        asked = {{key: getattr(request, key) for key in ("slug", "language", "kernel_type", "machine_shape", "is_private",
            "enable_gpu", "enable_internet", "session_timeout_seconds", "text")}}
        Path("request.json").write_text(json.dumps(asked))
        answer = api.ApiSaveKernelResponse()
        answer.version_number, answer.url, answer.error = 1, "https://www.kaggle.com/code/x", os.environ["REFUSAL"]
        return answer

    def get_kernel_session_status(self, request):
        answer = api.ApiGetKernelSessionStatusResponse()
        answer.status = enums.KernelWorkerStatus[os.environ["STATE"]]
        return answer

    def list_kernel_session_output(self, request):
        files = [types.SimpleNamespace(file_name=path.name, url=str(path)) for path in Path("answer").iterdir()]
        return types.SimpleNamespace(files=files, log="", next_page_token="")

class Security:
    def introspect_token(self, request):
        return types.SimpleNamespace(active=True, username="somebody")

@contextlib.contextmanager
def build_kaggle_client(self):
    yield types.SimpleNamespace(kernels=types.SimpleNamespace(kernels_api_client=Kernels()),
        security=types.SimpleNamespace(oauth_client=Security()))

from kaggle.api.kaggle_api_extended import KaggleApi
KaggleApi.build_kaggle_client = build_kaggle_client
requests.get = lambda url, **options: types.SimpleNamespace(content=Path(url).read_bytes())
from kaggle.cli import main
main()
"""


@pytest.fixture
def real(clone, monkeypatch):
    """The clone, with Kaggle's own client."""
    python = client("kaggle", "--requirement", str(RUNNERS / "kaggle" / "requirements.txt"))
    program(clone.parent / "bin" / "kaggle", REAL.format(python=python))
    monkeypatch.setenv("KAGGLE_API_TOKEN", "a-token")
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(clone.parent))
    return clone


def test_kaggles_own_client_takes_the_notebook(real):
    done, runs = vouch(real, REFUSAL="", STATE="COMPLETE")
    assert (done.returncode, runs) == (0, ["2-gpus.json"]), done.stdout + done.stderr
    request = json.loads((real / "request.json").read_text())
    assert len(json.loads(request.pop("text"))["cells"]) == 4
    assert request == {
        "slug": "somebody/vouch-for-the-book",
        "language": "python",
        "kernel_type": "notebook",
        "machine_shape": "NvidiaTeslaT4",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": True,
        "session_timeout_seconds": 3000,
    }


@pytest.mark.parametrize(
    "answers, said",
    [
        ({"REFUSAL": QUOTA.partition(": ")[2], "STATE": "COMPLETE"}, "the quota is used up: Maximum weekly GPU quota"),
        ({"REFUSAL": "", "STATE": "ERROR"}, "the notebook failed: "),
    ],
)
def test_kaggles_own_client_says_what_the_script_reads(real, answers, said):
    done, runs = vouch(real, **answers)
    assert (done.returncode, runs) == (1, []) and done.stderr.startswith(f"kaggle: {said}"), done.stderr


def test_kaggles_own_client_knows_every_key_of_the_metadata(real):
    """It ignores what it does not know, so a misspelt key would go unnoticed; its template has all of them."""
    environment = {**os.environ, "REFUSAL": "", "STATE": ""}
    command = [real.parent / "bin" / "kaggle", "kernels", "init", "--path", real]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    template = json.loads((real / "kernel-metadata.json").read_text())
    assert set(json.loads((RUNNERS / "kaggle" / "kernel-metadata.json").read_text())) == set(template)


# Kaggle: the notebook


def run_notebook(clone, gpus, monkeypatch, red=""):
    """Runs the notebook, as it is sent, on a machine that shows so many GPUs; returns the files that Kaggle would keep."""
    vouch(clone)
    kept = clone.parent / "working"
    kept.mkdir()
    lines = "\n".join(f"GPU {i}: Tesla T4 (UUID: GPU-{i})" for i in range(gpus))
    program(clone.parent / "bin" / "nvidia-smi", f'echo "{lines or "No devices were found"}"; exit {0 if gpus else 6}')
    for name, value in {"RED": red, "MARK": str(clone.parent / "checked")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{clone.parent / 'bin'}:{os.environ['PATH']}")
    notebook = nbformat.read(clone / "sent" / "vouch.ipynb", as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(kept)}}).execute()
    files = {path.name: path.read_text() for path in kept.iterdir()}
    assert notebook.cells[-1].outputs[-1].text.splitlines()[-1] == files["verdict.txt"].strip()
    return files


@pytest.mark.parametrize("gpus", [0, 1])
def test_without_two_gpus_the_notebook_vouches_for_nothing(clone, gpus, monkeypatch):
    files = run_notebook(clone, gpus, monkeypatch)
    assert list(files) == ["verdict.txt"]
    said = f"no accelerator with two GPUs: this machine shows {gpus}; Kaggle's is called GPU T4 x2"
    assert files["verdict.txt"] == f"nothing was vouched: {said}\n"
    assert not (clone.parent / "checked").exists()


def test_the_notebook_keeps_two_runs_if_all_is_green(clone, monkeypatch):
    files = run_notebook(clone, 2, monkeypatch)
    known = git(clone, "rev-parse", "HEAD")[:12]
    assert files.pop("verdict.txt") == "vouched: 1-gpus.json 2-gpus.json\n"
    assert {name: json.loads(text) for name, text in files.items()} == dict.fromkeys(
        ("1-gpus.json", "2-gpus.json"), {"commit": known}
    )


def test_the_notebook_keeps_no_run_if_the_gpus_disagree(clone, monkeypatch):
    files = run_notebook(clone, 2, monkeypatch, red="yes")
    assert files == {"verdict.txt": "nothing was vouched: make gpu-check failed: 2 failed\n"}


# Recording on a machine with several GPUs


@pytest.mark.parametrize(
    "counts, runs", [(["1", "2"], ["1-gpus", "2-gpus"]), (["2"], ["run"]), ([], ["1-gpus", "2-gpus"])]
)
def test_each_count_of_gpus_is_recorded(clone, counts, runs):
    """Without a count, those of the book that the machine has: the stand-in for Python says 1 and 2."""
    python = clone / ".venv/bin/python"
    python.write_text(python.read_text() + '[ "$1" != -c ] || echo 1 2\n')
    subprocess.run(["sh", "tools/record_run.sh", *counts], cwd=clone, check=True)
    assert sorted(path.stem for path in (clone / "_build" / "recorded").iterdir()) == runs
