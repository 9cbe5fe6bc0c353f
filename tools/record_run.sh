#!/bin/sh
# Executes the book on so many GPUs and records it; _build/recorded has that record and no other: sh tools/record_run.sh COUNT
set -eu
rm -rf _build/recorded
mkdir -p _build/recorded
.venv/bin/python -m book execute --force --gpus "$1"
said=$(.venv/bin/python -m book record run)
echo "$said"
cp "$(echo "$said" | sed -n 's/^recorded: //p')" _build/recorded/
