"""A model held still: evaluation mode, no gradients, and the random state and every training flag come back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def still(*models: nn.Module) -> Iterator[None]:
    """Run the block with models in evaluation mode and without gradients; flags and random state are restored.

    >>> model = nn.Dropout().train()
    >>> with still(model):
    ...     model.training, torch.is_grad_enabled()
    (False, False)
    >>> model.training
    True
    """
    flags = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for module, flag in flags:
            module.training = flag
