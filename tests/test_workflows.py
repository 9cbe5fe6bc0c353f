"""The workflows: the code of a fork reaches no GPU machine and no secret."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) for path in FILES}
JOBS = [(file, job) for file, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
# By these, code that nobody of the project has looked at can start a workflow.
BY_ANYBODY = {"pull_request", "pull_request_target", "workflow_run", "issue_comment", "issues", "fork", "watch"}


@pytest.mark.parametrize("file, job", JOBS)
def test_only_the_protected_branch_reaches_machines_of_our_own(file, job):
    if "self-hosted" in job["runs-on"]:
        assert set(WORKFLOWS[file]["on"]) <= {"schedule", "workflow_dispatch"}
        assert job["if"] == "github.ref == 'refs/heads/main'"
        assert job["environment"]
        checkout = next(step for step in job["steps"] if "actions/checkout" in step.get("uses", ""))
        assert checkout["with"]["ref"] == "main"


@pytest.mark.parametrize("file, job", JOBS)
def test_what_anybody_can_start_may_only_read(file, job):
    assert "secrets." not in str(job) and "github.token" not in str(job) or not BY_ANYBODY & set(WORKFLOWS[file]["on"])
    assert "pull_request_target" not in WORKFLOWS[file]["on"]
    assert WORKFLOWS[file]["permissions"] == {}, "no permission unless a job names it"
    if BY_ANYBODY & set(WORKFLOWS[file]["on"]):
        assert job["permissions"] == {"contents": "read"}
        assert job["runs-on"].startswith("ubuntu-")


@pytest.mark.parametrize("file, job", JOBS)
def test_actions_are_pinned_and_jobs_end(file, job):
    assert int(job["timeout-minutes"]) <= 60
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] == "false"


@pytest.mark.parametrize("file, job", JOBS)
def test_steps_are_commands_that_work_by_hand(file, job):
    """Targets of the Makefile, scripts of the repository, and the book's own command line."""
    assert WORKFLOWS[file]["defaults"]["run"]["shell"] == "bash -euo pipefail {0}"
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for step in job["steps"]:
        for line in step.get("run", "").strip().splitlines():
            words = line.split()
            if words[0] == "make":
                assert words[1] in targets
            elif words[0] == "sh":
                assert (ROOT / words[1]).exists()
            elif words[0] == ".venv/bin/python":
                module = words[2].replace(".", "/")
                assert (ROOT / f"{module}.py").exists() or (ROOT / module / "__main__.py").exists()
                if words[2] == "book":
                    command = [sys.executable, "-m", "book", words[3], "--help"]
                    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
            else:
                assert words[:3] == ["gh", "issue", "create"]


def test_runs_are_named_as_the_collector_looks_for_them():
    steps = [
        step for step in WORKFLOWS["gpu.yml"]["jobs"]["vouch"]["steps"] if "upload-artifact" in step.get("uses", "")
    ]
    names = [step["with"]["name"] for step in steps]
    assert "run-${{ matrix.gpus }}" in names
    assert "run-*" in (ROOT / "tools" / "collect_runs.sh").read_text(encoding="utf-8")
