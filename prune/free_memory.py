"""Free memory: what this process may still take, in main memory and on a model's devices."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def free_memory() -> int | None:
    """Bytes that this process may still take in main memory; None where the system does not say."""
    found = [1024 * int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limit, used = (_lines(f"/sys/fs/cgroup/{name}") for name in ("memory.max", "memory.current"))
    if limit and used and limit[0].isdecimal():
        found.append(int(limit[0]) - int(used[0]))
    return min(found, default=None)


def free_beside(model: nn.Module) -> int | None:
    """Bytes that are free where a model's weights are: on its devices, else in main memory."""
    devices = {parameter.device for parameter in model.parameters()}
    if devices and all(device.type == "cuda" for device in devices):
        return sum(torch.cuda.mem_get_info(device)[0] for device in devices)
    return free_memory()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
