"""More than one process: each looks at its share of the batches, and all get the sums of all."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.batching import Batch
from headwise.analysis.capture import Pass, capture
from headwise.analysis.errors import HeadwiseError
from headwise.analysis.progress import progress_shown
from headwise.analysis.seen import Reducer


def world() -> tuple[int, int]:
    """This process's number and how many there are, as torchrun and `accelerate launch` say it; (0, 1) alone.

    >>> world()
    (0, 1)
    """
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def shared_capture(model: nn.Module, batches: Iterable[Batch], reducers: Sequence[Reducer], **how: Any) -> Pass:
    """`capture`, with the batches dealt out to all processes and the reducers' sums brought together in each.

    The order in which sums meet is that of the processes, so that every process ends with the same bits.

    Args:
        model: the same in every process.
        batches: the same in every process.
        reducers: fresh ones; see `absorb`.
        how: further arguments of `capture`.
    """
    rank, count = world()
    if count == 1:
        return capture(model, batches, reducers, **how)
    _connect()
    # One bar for the whole: the first process's share stands for all of them.
    with progress_shown(False) if rank else contextlib.nullcontext():
        went = capture(model, _dealt(batches, rank, count), reducers, **how)
    for reducer in reducers:
        finish = getattr(reducer, "finish", None)
        if finish is not None:
            finish()
    told: list[Any] = [None] * count
    torch.distributed.all_gather_object(told, ([_told(reducer) for reducer in reducers], went))
    for i in range(len(reducers)):
        for other in range(count):
            mine = told[other][0][i]
            if other == 0:
                _restore(reducers[i], mine)
            else:
                absorb(reducers[i], mine)
    whole = told[0][1]
    for other in range(1, count):
        _add_pass(whole, told[other][1])
    for field in fields(went):
        setattr(went, field.name, getattr(whole, field.name))
    return went


def _connect() -> None:
    if not torch.distributed.is_initialized():
        # What is sent are sums in main memory, a few megabytes, once: no need for the devices' own network.
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=12))


def _dealt(batches: Iterable[Batch], rank: int, count: int) -> Iterator[Batch]:
    for i, batch in enumerate(batches):
        if i % count == rank:
            yield batch


def totals_of(thing: Any) -> tuple[str, ...]:
    """The attributes of a reducer that hold what it has summed.

    >>> from headwise.analysis.statistics import Statistics
    >>> totals_of(Statistics({}))
    ('sums', 'rows')
    """
    names = getattr(type(thing), "totals", None)
    if names is None:
        raise HeadwiseError(
            f"{type(thing).__name__} does not say which attributes hold its sums (`totals`); it cannot be "
            "brought together over processes"
        )
    return tuple(names)


def _told(thing: Any) -> Any:
    """What is sent of a reducer: its sums, on the processor."""
    if hasattr(type(thing), "totals"):
        return {name: _told(getattr(thing, name)) for name in totals_of(thing)}
    if isinstance(thing, Tensor):
        return thing.cpu()
    if isinstance(thing, dict) and not isinstance(thing, Counter):
        return {key: _told(value) for key, value in thing.items()}
    return thing


def _restore(mine: Any, told: dict[str, Any]) -> None:
    for name, value in told.items():
        current = getattr(mine, name)
        if hasattr(type(current), "totals"):
            _restore(current, value)
        elif isinstance(current, dict) and any(hasattr(type(part), "totals") for part in current.values()):
            for key, part in current.items():
                _restore(part, value[key])
        else:
            setattr(mine, name, value)


def absorb(mine: Any, told: dict[str, Any]) -> None:
    """Add another process's sums to a reducer: numbers are added, what only the other has is taken over.

    A reducer names its sums in `totals`; one whose state is more than sums has a method `absorb` of its own.

    Args:
        mine: the reducer; changed in place.
        told: the other's sums by name.

    >>> class Count:
    ...     totals = ("n",)
    ...     n = 1
    >>> one = Count()
    >>> absorb(one, {"n": 2})
    >>> one.n
    3
    """
    own = getattr(mine, "absorb", None)
    if own is not None:
        own(told)
        return
    for name, value in told.items():
        setattr(mine, name, _sum(getattr(mine, name), value))


def _sum(mine: Any, other: Any) -> Any:
    if hasattr(type(mine), "totals"):
        absorb(mine, other)
        return mine
    if isinstance(mine, Counter):
        return mine + other
    if isinstance(mine, dict):
        for key, value in other.items():
            mine[key] = _sum(mine[key], value) if key in mine else value
        return mine
    if isinstance(mine, Tensor):
        return mine + other.to(mine.device)
    if isinstance(mine, np.ndarray | int | float):
        return mine + other
    raise HeadwiseError(f"cannot bring together {type(mine).__name__}; give its reducer a method absorb")


def _add_pass(whole: Pass, part: Pass) -> None:
    tokens = dict(whole.rows_by_site)
    for field in fields(whole):
        mine, other = getattr(whole, field.name), getattr(part, field.name)
        if field.name == "missing":
            continue
        setattr(whole, field.name, _sum(mine, other))
    for name in {*whole.missing, *part.missing}:
        a, b = tokens.get(name, 0), part.rows_by_site.get(name, 0)
        lost = whole.missing.get(name, 0.0) * a + part.missing.get(name, 0.0) * b
        whole.missing[name] = lost / max(1, a + b)
    whole.rows = max(whole.rows_by_site.values(), default=0)
