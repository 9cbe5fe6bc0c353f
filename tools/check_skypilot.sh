#!/bin/sh
# Lets SkyPilot's own parser read runners/sky.yaml. SkyPilot is large, and has an environment of its own.
set -eu
folder=_build/clients/skypilot
if ! [ -e $folder/ready ]; then
    python3 -m venv $folder
    $folder/bin/pip install --quiet --disable-pip-version-check skypilot
    touch $folder/ready
fi
.venv/bin/python -m pytest -n0 tests/test_runners.py -k skypilot
