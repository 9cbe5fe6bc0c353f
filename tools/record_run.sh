#!/bin/sh
# Executes the book on so many GPUs and records it; _build/recorded has these records and no others:
#   sh tools/record_run.sh [COUNT …]
# Without a COUNT: on 1, 2, 3 and 8 GPUs, as far as the machine has so many.
set -eu
python=.venv/bin/python
if [ $# = 0 ]; then
    # shellcheck disable=SC2046 # several words
    set -- $($python -c "from book.machine import gpus; print(*(n for n in (1, 2, 3, 8) if n <= len(gpus())))")
fi
rm -rf _build/recorded
mkdir -p _build/recorded
$python -m book execute --force --gpus "$(echo "$*" | tr ' ' ,)"
for count; do
    run=$count-gpus
    [ $# -gt 1 ] || run=run # where the book puts the only one
    said=$($python -m book record "$run" --force)
    echo "$said"
    cp "$(echo "$said" | sed -n 's/^recorded: //p')" _build/recorded/
done
