"""A model held still: evaluation mode and frozen weights, and everything as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def still(*models: nn.Module) -> Iterator[None]:
    """Run the block with models in evaluation mode and their weights frozen, and give all of it back.

    Every module's training flag, every parameter's grad flag and the processor's random state are as before
    afterwards, also when the block raises. Whether gradients are recorded (of gates, say) is the block's own
    affair: add `torch.no_grad()` where none are wanted.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Dropout().eval())
    >>> with still(model):
    ...     model.training, model[0].weight.requires_grad
    (False, False)
    >>> [module.training for module in model.modules()], model[0].weight.requires_grad
    ([True, True, False], True)
    """
    # Module by module: a part may rest while the whole trains, and `train()` would wake it.
    training = [(module, module.training) for model in models for module in model.modules()]
    # By name: weights that accelerate has put out are other tensors after every pass.
    learning = [
        (module, name)
        for model in models
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    ]
    try:
        for model in models:
            model.eval()
        for module, name in learning:
            getattr(module, name).requires_grad_(False)
        # Some forwards draw even at rest (masked patches).
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, name in learning:
            getattr(module, name).requires_grad_(True)
        for module, flag in training:
            module.training = flag
