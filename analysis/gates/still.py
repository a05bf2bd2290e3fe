"""A model held still: evaluation mode, frozen weights, no compiled code; and everything as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from headwise.analysis.gates.hooked import uncompiled


@contextlib.contextmanager
def same_way(*models: nn.Module) -> Iterator[None]:
    """Run the block, and let models attend afterwards as they did before.

    Some models (BigBird) leave sparse attention for good at the first short input: `set_attention_type` puts other
    modules in the place of those that were there. They come back, as they were.
    """
    ways = [
        (module, module.attention_type, dict(module.named_children()))
        for model in models
        for module in model.modules()
        if hasattr(module, "set_attention_type") and hasattr(module, "attention_type")
    ]
    try:
        yield
    finally:
        for module, way, children in ways:
            if module.attention_type != way:
                module.attention_type = way
                for name, child in children.items():
                    setattr(module, name, child)


@contextlib.contextmanager
def still(*models: nn.Module) -> Iterator[None]:
    """Run the block with models in evaluation mode, their weights frozen, uncompiled, and give all of it back.

    Every module's training flag, every parameter's grad flag, the way of attending (`same_way`) and the processor's
    random state are as before afterwards, also when the block raises. Whether gradients are recorded (of gates, say)
    is the block's own affair: add `torch.no_grad()` where none are wanted.

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
        with same_way(*models), torch.random.fork_rng(devices=[]), uncompiled():
            yield
    finally:
        for module, name in learning:
            getattr(module, name).requires_grad_(True)
        for module, flag in training:
            module.training = flag
