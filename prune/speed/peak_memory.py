"""Peak memory: what a forward pass holds beside the weights when it holds most."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.prune.tasks.outcome import judging


def peak_memory(model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    """Bytes that one forward pass holds at its peak, beyond weights and inputs.

    On CUDA the allocator says it. Elsewhere the tensors that operations return are counted while they live:
    the same in every run, without the scratch space inside an operation. (The resident set of a process
    that holds two models tells neither: freed memory stays with the process.)

    >>> layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> peak_memory(layers, {"input": torch.ones(3, 4)}) == 4 * 3 * (8 + 2)
    True
    """
    device = next(model.parameters()).device
    with judging(model):
        if device.type == "cuda":
            model(**inputs)
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            model(**inputs)
            torch.cuda.synchronize(device)
            return int(torch.cuda.max_memory_allocated(device) - before)
        # What says how to run (`use_cache`) is no tensor.
        given = [value for value in inputs.values() if isinstance(value, Tensor)]
        known = [*model.parameters(), *model.buffers(), *given]
        with _Living(known) as living:
            model(**inputs)
        return int(living.peak)


class _Living(TorchDispatchMode):
    """Counts the bytes of the storages that are alive."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.peak: int = 0
        # Keyed by address: a storage that is alive is the only one there.
        self.there = {tensor.untyped_storage().data_ptr() for tensor in known}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self._see(leaf.untyped_storage())
        return found

    def _see(self, storage: Any) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or address in self.there:
            return
        self.there.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, address, size)

    def _gone(self, address: int, size: int) -> None:
        self.there.discard(address)
        self.now -= size
