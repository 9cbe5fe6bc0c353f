#!/bin/sh
# Executes the book with the pinned packages, then with the newest torch, and says which cells put out something else.
# The report is _build/newest_torch.txt; the exit code is 1 if any cell differs or a lesson fails.
set -eu
make .venv/ready
.venv/bin/python -m book execute
rm -rf _build/pinned
cp -r _build/run _build/pinned
python3 -m venv _build/newest
sed 's/^torch==.*/torch/' requirements.txt >_build/newest.txt
_build/newest/bin/pip install --quiet --requirement _build/newest.txt
if _build/newest/bin/python -m book execute --force >_build/newest_torch.txt 2>&1; then
    _build/newest/bin/python -m book diff _build/pinned run >_build/newest_torch.txt
else
    exit 1
fi
