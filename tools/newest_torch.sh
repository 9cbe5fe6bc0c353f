#!/bin/sh
# Executes the book with the pinned packages, then with the newest torch, and says which cells put out something else.
# The report is _build/newest_torch.txt, however far it came; the exit code is not 0 if a cell differs or a lesson fails.
set -eu
report=_build/newest_torch.txt
mkdir -p _build
trap 'cat "$report"' EXIT

# Keeps the run under this name, without the version of torch that a lesson prints.
keep() {
    rm -rf "_build/$1"
    cp -r _build/run "_build/$1"
    printed="torch $("$2" -c "import torch; print(torch.__version__)")"
    for notebook in "_build/$1"/*/*.ipynb; do
        sed "s/$printed/torch/" "$notebook" >"$notebook.new"
        mv "$notebook.new" "$notebook"
    done
}

echo "The pinned packages fail already." >"$report"
make .venv/ready >>"$report" 2>&1
.venv/bin/python -m book execute >>"$report" 2>&1
keep pinned .venv/bin/python

echo "The newest torch cannot be installed beside the pinned packages." >"$report"
python3 -m venv _build/newest
sed 's/^torch==.*/torch/' requirements.txt >_build/newest.txt
grep -v '^torch==' requirements.lock >_build/newest.lock
_build/newest/bin/pip install --quiet --constraint _build/newest.lock --requirement _build/newest.txt \
    --editable ./warm-kernel >>"$report" 2>&1

echo "With the newest torch, lessons fail." >"$report"
_build/newest/bin/python -m book execute --force >>"$report" 2>&1
keep newest-run _build/newest/bin/python

echo "With the newest torch, cells put out something else." >"$report"
.venv/bin/python -m book diff _build/pinned _build/newest-run >>"$report" 2>&1
echo "With the newest torch, every cell puts out the same." >"$report"
