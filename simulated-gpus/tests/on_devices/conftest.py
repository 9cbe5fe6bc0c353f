"""These tests need simulated devices in their own process: SIMULATED_GPUS=8 python -m pytest simulated-gpus/tests/on_devices"""

import os

import simulated_gpus

if os.environ.get("SIMULATED_GPUS"):
    simulated_gpus.autoload()  # in case the package is not installed, so that PyTorch has not called it
else:
    collect_ignore_glob = ["*"]
