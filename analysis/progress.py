"""One progress bar for the work of the moment, with a time estimate, on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

_QUIET: ContextVar[bool] = ContextVar("headwise_quiet", default=True)


@contextlib.contextmanager
def progress_shown(shown: bool = True) -> Iterator[None]:
    """Show bars inside the block (the command line does, a library call stays silent unless asked).

    >>> with progress_shown(False):
    ...     sum(track([1, 2], label="adding"))
    3
    """
    token = _QUIET.set(not shown)
    try:
        yield
    finally:
        _QUIET.reset(token)


def quiet() -> bool:
    """Whether bars are left out.

    >>> quiet()
    True
    """
    return _QUIET.get()


def track(items: Iterable[Item], total: int | None = None, label: str = "") -> Iterator[Item]:
    """Yield `items`, drawing a bar on stderr while they last.

    Args:
        items: what is worked through.
        total: how many there are, if `len(items)` does not say.
        label: what is being done, in the words of the user's task.

    >>> list(track("ab", label="letters"))
    ['a', 'b']
    """
    if _QUIET.get():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=label)
