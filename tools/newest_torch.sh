#!/bin/sh
# Executes the book with the pinned packages, then with the newest torch, and says which cells put out something else.
# The report is _build/newest_torch.txt; the exit code is 1 if any cell differs or a lesson fails.
set -eu
# Keeps the run under this name, without the version of torch that a lesson prints.
keep() {
    rm -rf "_build/$1"
    cp -r _build/run "_build/$1"
    printed="torch $("$2" -c "import torch; print(torch.__version__)")"
    sed -i "s/$printed/torch/" "_build/$1"/*/*.ipynb
}

make .venv/ready
.venv/bin/python -m book execute
keep pinned .venv/bin/python
python3 -m venv _build/newest
sed 's/^torch==.*/torch/' requirements.txt >_build/newest.txt
_build/newest/bin/pip install --quiet --requirement _build/newest.txt --editable ./warm-kernel
if _build/newest/bin/python -m book execute --force >_build/newest_torch.txt 2>&1; then
    keep newest-run _build/newest/bin/python
    .venv/bin/python -m book diff _build/pinned _build/newest-run >_build/newest_torch.txt
else
    exit 1
fi
