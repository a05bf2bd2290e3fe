"""Hooked: hooks of modules that last as long as a block, and are seen in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch.utils.hooks import RemovableHandle


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run the block without code that `torch.compile` has made, or would make.

    Compiled code has only the hooks that were there when it was made, and never looks again: hooks set later would do
    nothing, and those that it saw would stay for good. Outside the block it is used as before.

    >>> with uncompiled():
    ...     torch.compile(torch.nn.Identity())(torch.ones(1))
    tensor([1.])
    """
    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends; of those that are set one by one, also where the next cannot be set.

    Compiled models run uncompiled in the block.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1)
    >>> with hooked([model.register_forward_hook(print)]):
    ...     len(model._forward_hooks)
    1
    >>> len(model._forward_hooks)
    0
    """
    with uncompiled(), contextlib.ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield
