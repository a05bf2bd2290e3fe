"""Precision: run a model in another one for a while, a large one a layer at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: Bytes that weights in another precision may take before those of layers are made layer by layer.
AT_ONCE = 2**30


@contextlib.contextmanager
def at(dtype: torch.dtype, model: nn.Module, *, at_once: float | int = AT_ONCE) -> Iterator[None]:
    """Run a model in another precision inside the block; the very same weights come back.

    Layers (items of module lists) of a large model are in it only while they run: one layer's weights are there twice,
    not all of them.

    Args:
        dtype: what weights and buffers of floating point are.
        model: the model.
        at_once: bytes that are made at once; layers of what is larger come one by one.

    >>> model = nn.Linear(2, 2)
    >>> with at(torch.float64, model):
    ...     model.weight.dtype, model(torch.ones(1, 2, dtype=torch.float64)).dtype
    (torch.float64, torch.float64)
    >>> model.weight.dtype
    torch.float32
    """
    changed = {id(one): one for one in _floats(model) if one.dtype != dtype}
    size = sum(one.numel() for one in changed.values()) * dtype.itemsize
    layers = layers_of(model) if size > at_once else []
    with contextlib.ExitStack() as stack:
        for layer in layers:
            own = [changed.pop(id(one)) for one in _floats(layer) if id(one) in changed]
            _Passing(dtype, own).watch(layer, stack)
        rest = _Passing(dtype, list(changed.values()))
        stack.callback(rest.leave)
        rest.enter()
        yield


def _floats(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            yield tensor


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Items of the outermost module lists whose weights nothing else has.

    >>> len(layers_of(nn.Sequential(nn.Linear(1, 1), nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]))))
    2
    """
    found: list[nn.Module] = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else layers_of(child)
    times: dict[int, int] = {}
    for layer in found:
        for one in {id(one) for one in _floats(layer)}:
            times[one] = times.get(one, 0) + 1
    return [layer for layer in found if all(times[id(one)] == 1 for one in _floats(layer))]


class _Passing:
    """Tensors that are of another precision between `enter` and `leave`."""

    def __init__(self, dtype: torch.dtype, tensors: list[Tensor]) -> None:
        self.dtype, self.tensors = dtype, tensors
        self.kept: list[tuple[Tensor, Tensor]] = []

    def watch(self, layer: nn.Module, stack: contextlib.ExitStack) -> None:
        """Enter where the layer begins to run, and leave where it ends."""

        def begin(*_: Any) -> None:
            self.enter()

        def end(*_: Any) -> None:
            self.leave()

        stack.callback(self.leave)
        stack.callback(layer.register_forward_pre_hook(begin, prepend=True).remove)
        stack.callback(layer.register_forward_hook(end, always_call=True).remove)

    def enter(self) -> None:
        if not self.kept:
            self.kept = [(tensor, tensor.data) for tensor in self.tensors]
            for tensor in self.tensors:
                tensor.data = tensor.data.to(self.dtype)

    def leave(self) -> None:
        for tensor, data in self.kept:
            tensor.data = data
        self.kept = []
