#!/bin/sh
# Executes the book with the pinned packages, then with the newest torch, says which cells put out something else, and
# tests what lessons and answers say. The report is _build/newest_torch.txt, however far it came; the exit code is not 0
# if a cell differs or anything fails.
set -eu
report=_build/newest_torch.txt
mkdir -p _build
trap 'cat "$report"' EXIT

# Keeps the run under this name, without the versions of torch that lessons print.
keep() {
    rm -rf "_build/$1"
    cp -r _build/run "_build/$1"
    for notebook in "_build/$1"/*/*.ipynb; do
        sed -E 's/([Tt]orch) [0-9]+\.[0-9]+\.[0-9]+(\+[a-z0-9]+)?/\1/g' "$notebook" >"$notebook.new"
        mv "$notebook.new" "$notebook"
    done
}

echo "The pinned packages fail already." >"$report"
make .venv/ready >>"$report" 2>&1
.venv/bin/python -m book execute >>"$report" 2>&1
keep pinned

echo "The newest torch cannot be installed beside the pinned packages." >"$report"
python3 -m venv _build/newest
sed 's/^torch==.*/torch/' requirements.txt >_build/newest.txt
grep -v '^torch==' requirements.lock >_build/newest.lock
_build/newest/bin/pip install --quiet --constraint _build/newest.lock --requirement _build/newest.txt \
    --editable ./warm-kernel --editable ./simulated-gpus pytest pytest-xdist hypothesis >>"$report" 2>&1

echo "With the newest torch, lessons fail." >"$report"
_build/newest/bin/python -m book execute --force >>"$report" 2>&1
keep newest-run

echo "With the newest torch, cells put out something else, or tests of the lessons fail." >"$report"
good=true
.venv/bin/python -m book diff _build/pinned _build/newest-run >>"$report" 2>&1 || good=false
# The numbers in the text are those of the pinned torch.
_build/newest/bin/python -m pytest --tb=short tests/lessons --ignore tests/lessons/test_numbers.py >>"$report" 2>&1 ||
    good=false
"$good"
echo "With the newest torch, every cell puts out the same, and all tests of the lessons pass." >"$report"
