"""Hooked: hooks of modules that last as long as a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from torch.utils.hooks import RemovableHandle


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends; of those that are set one by one, also where the next cannot be set.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1)
    >>> with hooked([model.register_forward_hook(print)]):
    ...     len(model._forward_hooks)
    1
    >>> len(model._forward_hooks)
    0
    """
    with contextlib.ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield
