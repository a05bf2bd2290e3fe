"""More than one process: each looks at its share of the batches, and all get the sums of all."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import nn

from headwise.analysis.capture import Pass, capture
from headwise.analysis.capture.keeping import Keeping
from headwise.analysis.capture.seen import Reducer
from headwise.analysis.capture.totals import absorb, put_back, sum_of, told
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.progress import progress_shown

Value = TypeVar("Value")


def world() -> tuple[int, int]:
    """This process's number and how many there are, as torchrun and `accelerate launch` say it; (0, 1) alone.

    >>> world()
    (0, 1)
    """
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def shared_capture(
    model: nn.Module,
    batches: Iterable[Batch],
    reducers: Sequence[Reducer],
    *,
    name: str = "",
    keeping: Keeping | None = None,
    **how: Any,
) -> Pass:
    """`capture`, with the batches dealt out to all processes and the reducers' sums brought together in each.

    The order in which sums meet is that of the processes, so that every process ends with the same bits.

    Args:
        model: the same in every process.
        batches: the same in every process.
        reducers: fresh ones; see `headwise.analysis.capture.totals`.
        name: of the pass, under which its sums are kept.
        keeping: where sums are kept while the pass goes on, each process's own share; None for nowhere.
        how: further arguments of `capture`.
    """
    rank, count = world()
    how["kept"] = None if keeping is None else keeping.of(name, rank)
    if count == 1:
        return capture(model, batches, reducers, **how)
    # One bar for the whole: the first process's share stands for all of them.
    with progress_shown(False) if rank else contextlib.nullcontext():
        went = capture(model, _dealt(batches, rank, count), reducers, **how)
    everyones = gathered(
        ([told(reducer) for reducer in reducers], {f.name: getattr(went, f.name) for f in fields(went)})
    )
    for i, reducer in enumerate(reducers):
        put_back(reducer, everyones[0][0][i])
        for sums, _ in everyones[1:]:
            absorb(reducer, sums[i])
    whole = Pass(**everyones[0][1])
    for _, other in everyones[1:]:
        for field, value in other.items():
            setattr(whole, field, sum_of(getattr(whole, field), value))
    return whole


def agreed(value: Value) -> Value:
    """What the first process has for a value; every process waits for it.

    >>> agreed("runs/one")
    'runs/one'
    """
    return gathered(value)[0]


def gathered(value: Value) -> list[Value]:
    """What every process has for a value, in their order.

    >>> gathered(3)
    [3]
    """
    count = world()[1]
    if count == 1:
        return [value]
    if not torch.distributed.is_initialized():
        # What is sent are sums in main memory, a few megabytes, once: no need for the devices' own network.
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=12))
    everyones: list[Any] = [None] * count
    torch.distributed.all_gather_object(everyones, value)
    return everyones


def _dealt(batches: Iterable[Batch], rank: int, count: int) -> Iterator[Batch]:
    for i, batch in enumerate(batches):
        if i % count == rank:
            yield batch
