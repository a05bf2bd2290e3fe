"""Where a model is: on one device, spread over several, or partly put out to memory and disk."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def home(model: nn.Module) -> torch.device:
    """The device that a model's inputs, and all that is computed from its maps, should be on.

    That of its weights; of a model that accelerate has spread (`device_map`), the first device that computes,
    since weights that were put out come to it only when they are needed.

    >>> home(nn.Linear(1, 1))
    device(type='cpu')
    """
    spread = getattr(model, "hf_device_map", None)
    if spread:
        computing = (place for place in spread.values() if str(place) not in ("cpu", "disk", "meta"))
        return torch.device(next(computing, "cpu"))
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def brought_in(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Run the block with a module's own weights there, even if they were put out; do not write to them.

    >>> with brought_in(nn.Linear(1, 1)) as _:
    ...     pass
    """
    if not hasattr(module, "_hf_hook"):
        return contextlib.nullcontext()
    from accelerate.utils import align_module_device

    found: contextlib.AbstractContextManager[None] = align_module_device(module)
    return found


def exact(device: torch.device) -> torch.device:
    """The device itself if it computes in float64, else the processor: Apple's does not.

    >>> exact(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type == "mps" else device
