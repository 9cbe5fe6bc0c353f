"""Stands in for PyTorch in the kernels of engine tests, which only say on what they run; it imports at once.

It sees the made-up GPUs that CUDA_VISIBLE_DEVICES names: those of the test's nvidia-smi.
"""

import os
from types import SimpleNamespace

_uuids = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith("GPU-")]

cuda = SimpleNamespace(device_count=lambda: len(_uuids), get_device_name=lambda number: f"Made-up {_uuids[number]}")
accelerator = SimpleNamespace(
    is_available=lambda: bool(_uuids), current_accelerator=lambda: SimpleNamespace(type="cuda")
)
version = SimpleNamespace(cuda="1.0" if _uuids else None)
