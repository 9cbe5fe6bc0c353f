"""The workflows: the code of a fork reaches no GPU machine and no secret, and only what is tested is published."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.conftest import BOOK, ROOT, program

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) for path in FILES}
ALL = [(file, job) for file, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
JOBS = [(file, job) for file, job in ALL if "uses" not in job]
CALLS = [(file, job) for file, job in ALL if "uses" in job]
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
        assert job["runs-on"].startswith(("ubuntu-", "macos-"))


def test_the_only_secret_is_kaggles_and_no_fork_reaches_it():
    [(file, job)] = [(file, job) for file, job in ALL if "secrets" in str(job)]
    assert set(WORKFLOWS[file]["on"]) <= {"schedule", "workflow_dispatch"}
    assert job["if"].split(" && ")[0] == "github.ref == 'refs/heads/main'" and "||" not in job["if"]
    assert job["environment"] == "gpu" and job["permissions"] == {"contents": "read"}
    checkout = next(step for step in job["steps"] if "actions/checkout" in step.get("uses", ""))
    assert checkout["with"]["ref"] == "main"
    [step] = [step for step in job["steps"] if "secrets" in str(step)]
    assert step["env"]["KAGGLE_API_TOKEN"] == "${{ secrets.KAGGLE_API_TOKEN }}"
    assert step["run"] == "sh runners/kaggle/vouch.sh", "only this one command sees it"
    assert "".join(path.read_text("utf-8") for path in FILES).count("secrets.") == 1, "no workflow gives it to all jobs"


@pytest.mark.parametrize("file, job", CALLS)
def test_a_called_workflow_is_of_this_commit_and_may_only_read(file, job):
    assert job["uses"].removeprefix("./.github/workflows/") in WORKFLOWS
    assert job["permissions"] == {"contents": "read"} and "secrets" not in job


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
            else:
                assert words[:2] == [".venv/bin/python", "-m"]
                module = words[2].replace(".", "/")
                assert (ROOT / f"{module}.py").exists() or (ROOT / module / "__main__.py").exists()
                if words[2] == "book":
                    command = [sys.executable, "-m", "book", words[3], "--help"]
                    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_nothing_is_published_before_every_test_has_passed():
    assert "workflow_call" in WORKFLOWS["book.yml"]["on"]
    assert any(step.get("run") == "make test" for step in WORKFLOWS["book.yml"]["jobs"]["test"]["steps"])
    jobs = WORKFLOWS["publish.yml"]["jobs"]
    [tested] = [name for name, job in jobs.items() if job.get("uses") == "./.github/workflows/book.yml"]
    assert tested in needed(jobs, "deploy")
    for file in ("book.yml", "publish.yml"):
        assert "continue-on-error" not in str(WORKFLOWS[file]), "a failure that is forgiven holds nothing back"
    for job in jobs.values():
        assert job.get("if", "github.ref == 'refs/heads/main'") == "github.ref == 'refs/heads/main'", "no always()"


def test_gpus_can_be_simulated_where_all_tests_run():
    """In a PyTorch built for CUDA they cannot: tests/simulated.py fails there."""
    assert WORKFLOWS["book.yml"]["jobs"]["test"]["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")


def test_a_mac_executes_all_lessons_that_start_no_ranks():
    """`on_ranks` needs Linux."""
    [step] = [
        step["run"] for step in WORKFLOWS["book.yml"]["jobs"]["macos"]["steps"] if "execute" in step.get("run", "")
    ]
    names = [word for word in step.split() if re.match(r"\d\d_", word)]
    alone = [page.name for page in BOOK.source.lessons if "on-ranks" not in [cell.id for cell in page.cells]]
    assert names == alone


def needed(jobs, name):
    """The jobs that must have succeeded before this one starts."""
    direct = jobs[name].get("needs", [])
    direct = {direct} if isinstance(direct, str) else set(direct)
    return direct.union(*(needed(jobs, other) for other in direct))


def test_a_gpu_machine_uploads_only_what_it_has_just_recorded(tmp_path):
    recorded_run(tmp_path / "runs" / "committed.json", "2026-01-01")
    program(
        tmp_path / ".venv/bin/python",
        'test "$3" = record && echo {} >runs/new.json && echo "recorded: runs/new.json" || :',
    )
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    steps = WORKFLOWS["gpu.yml"]["jobs"]["vouch"]["steps"]
    for step in steps:
        if "record" in step.get("run", ""):
            subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], cwd=tmp_path, env={"GPUS": "1"}, check=True)
    [upload] = [step["with"] for step in steps if step.get("with", {}).get("name") == "run-${{ matrix.gpus }}"]
    assert [path.name for path in tmp_path.glob(upload["path"])] == ["new.json"]


def test_collected_runs_replace_no_newer_one_and_bring_back_no_removed_one(tmp_path):
    def git(*arguments, date="2026-01-05"):
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
        environment = {**os.environ, "GIT_COMMITTER_DATE": f"{date}T12:00:00+00:00"}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    old, new = "2026-01-01", "2026-02-02"
    git("init")
    for name, date in {"newer": new, "older": old, "removed": old, "removed-then-recorded": old}.items():
        recorded_run(tmp_path / "runs" / f"{name}.json", date)
    git("add", "runs")
    git("commit", "-m", "add")
    git("rm", "runs/removed.json", "runs/removed-then-recorded.json")
    git("commit", "-m", "remove", date="2026-01-06")
    artifact = tmp_path / "artifacts" / "run-1"  # what gpu.yml calls them
    fetched = {"newer": old, "older": new, "removed": old, "removed-then-recorded": new, "first": old}
    for name, date in fetched.items():
        recorded_run(artifact / f"{name}.json", date)
    # run download 7 --pattern P --dir D; no job of run 8 has succeeded
    download = 'if [ "$3" = 8 ]; then exit 1; fi; mkdir -p "${7:?}" && cp -r artifacts/run-1 "$7"'
    gh = f'if [ "$2" = list ]; then echo 8; echo 7; else {download}; fi'
    program(tmp_path / "bin" / "gh", gh)
    collect = ["sh", str(ROOT / "tools" / "collect_runs.sh")]
    subprocess.run(collect, cwd=tmp_path, env=path_with(tmp_path / "bin"), check=True)
    dates = {path.stem: executed(path) for path in (tmp_path / "runs").iterdir()}
    assert dates == {"newer": new, "older": new, "removed-then-recorded": new, "first": old}
    checkout = WORKFLOWS["publish.yml"]["jobs"]["render"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == "0", "what was removed is known by the whole history"


def test_a_report_is_written_however_early_the_newest_torch_fails(tmp_path):
    done = subprocess.run(["sh", str(ROOT / "tools" / "newest_torch.sh")], cwd=tmp_path, capture_output=True, text=True)
    report = (tmp_path / "_build" / "newest_torch.txt").read_text()
    assert done.returncode != 0 and report.startswith("The pinned packages fail already.\n")
    assert done.stdout == report, "the job's log has it too"


def standing_in(repositories, folder):
    """The environment in which git finds these repositories, {"owner/name": {file: text}}, where it looks for GitHub's.

    Each file has two versions, of two days: the text may be a pair of them.
    """
    for name, files in repositories.items():
        place = folder / name
        subprocess.run(["git", "init", "--quiet", place], check=True)
        subprocess.run(["git", "-C", place, "config", "uploadpack.allowFilter", "true"], check=True)
        for i, date in enumerate(("2026-07-16", "2026-09-01")):
            for file, text in files.items():
                (place / file).write_text(text if isinstance(text, str) else text[i])
            commit = [
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@example.org",
                "commit",
                "--quiet",
                "--allow-empty",
                "-mm",
            ]
            dated = {**os.environ, "GIT_COMMITTER_DATE": f"{date}T06:00:00Z"}
            for command in (["add", "."], commit):
                subprocess.run(["git", "-C", place, *command], env=dated, check=True)
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_VALUE_0": "https://github.com/"}
    return {**os.environ, **settings, "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}/.insteadOf"}


COLAB = {
    "pip-freeze.txt": (
        "matplotlib==3.10.0\nmatplotlib-venn==1.0\nnumpy==2.0.2\ntorch @ https://example.org/cu128/torch-2.11.0%2Bcu128.whl\n",
        "jupyter_client==7.4.9\nnumpy==2.1.3\ntorch==2.12.0+cu130\n",
    )
}
KAGGLE = {
    "config.txt": "BASE_IMAGE_TAG=release-colab-external-images_20260716-060051_RC00\n",
    "Dockerfile.tmpl": "FROM ${BASE_IMAGE}\n",
    "kaggle_requirements.txt": "# why\nmatplotlib<3.8\nnumpyro\nipykernel\nshap==0.44.1\n",
}


@pytest.mark.parametrize("service", ["colab", "kaggle"])
def test_versions_of_hosted_notebooks(tmp_path, service):
    github = standing_in({"googlecolab/backend-info": COLAB, "Kaggle/docker-python": KAGGLE}, tmp_path / "github")
    command = ["sh", ROOT / "tools" / "hosted_packages.sh", service, "packages"]
    subprocess.run(command, cwd=tmp_path, env=github, check=True)
    read = {path.stem: path.read_text().split() for path in (tmp_path / "packages").glob("*.txt")}
    if service == "colab":
        assert read["base"] == ["jupyter_client==7.4.9", "numpy==2.1.3", "torch==2.12.0"] and "added" not in read
    else:  # of the day of its base image
        assert read["base"] == ["matplotlib==3.10.0", "numpy==2.0.2", "torch==2.11.0"]
        assert read["added"] == ["torch==2.11.0", "matplotlib<3.8", "ipykernel"]


@pytest.mark.parametrize(
    "service, colab, kaggle, said",
    [
        ("kaggle", COLAB, {**KAGGLE, "config.txt": "BASE_IMAGE_TAG=m91\n"}, "no longer names the day"),
        ("colab", {"pip-freeze.txt": "numpy==2.0.2\n"}, KAGGLE, "names no version of torch"),
    ],
)
def test_lists_of_hosted_notebooks_that_have_changed(tmp_path, service, colab, kaggle, said):
    github = standing_in({"googlecolab/backend-info": colab, "Kaggle/docker-python": kaggle}, tmp_path / "github")
    command = ["sh", ROOT / "tools" / "hosted_packages.sh", service, "packages"]
    done = subprocess.run(command, cwd=tmp_path, env=github, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("known, command", [("", "issue create"), ("7", "issue edit 7")])
@pytest.mark.parametrize("report", ["cells differ", None])
def test_one_issue_is_kept_for_one_title(tmp_path, known, command, report):
    said = tmp_path / "said.txt"
    answer = f'if [ "$2" = list ]; then echo {known}; else echo "$@"; cat "$last"; fi'
    program(tmp_path / "bin" / "gh", f"for last; do :; done\n{answer} | tee said.txt")
    if report:
        (tmp_path / "report.txt").write_text(report)
    script = ["sh", str(ROOT / "tools" / "report_issue.sh"), "Title", "report.txt"]
    subprocess.run(script, cwd=tmp_path, env=path_with(tmp_path / "bin"), check=True, capture_output=True)
    assert command in said.read_text()
    assert (report or "report.txt was not written") in said.read_text()


def path_with(folder):
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def recorded_run(path, date):
    path.parent.mkdir(parents=True, exist_ok=True)
    lessons = {"en/01_device": {"executed": f"{date}T08:00:00+00:00"}}
    path.write_text(json.dumps({"cells": {}, "lessons": lessons}, indent=1))


def executed(path):
    return json.loads(path.read_text())["lessons"]["en/01_device"]["executed"][:10]
