"""What a reducer has summed: told, put back, and added to another's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.errors import HeadwiseError


def totals_of(thing: Any) -> tuple[str, ...]:
    """The attributes of a reducer that hold what it has summed.

    >>> from headwise.analysis.statistics import Statistics
    >>> totals_of(Statistics({}))
    ('sums', 'rows')
    """
    names = getattr(type(thing), "totals", None)
    if names is None:
        raise HeadwiseError(
            f"{type(thing).__name__} does not say which attributes hold its sums (`totals`); it can be neither "
            "brought together over processes nor gone on with"
        )
    return tuple(names)


def told(thing: Any) -> Any:
    """A reducer's sums by name, on the processor; what it holds open of the last batch is taken in first.

    >>> from headwise.analysis.statistics import Statistics
    >>> sorted(told(Statistics({})))
    ['rows', 'sums']
    """
    finish = getattr(thing, "finish", None)
    if finish is not None:
        finish()
    return _told(thing)


def _told(thing: Any) -> Any:
    if hasattr(type(thing), "totals"):
        return {name: _told(getattr(thing, name)) for name in totals_of(thing)}
    if isinstance(thing, Tensor):
        return thing.cpu()
    if isinstance(thing, dict) and not isinstance(thing, Counter):
        return {key: _told(value) for key, value in thing.items()}
    return thing


def put_back(mine: Any, sums: dict[str, Any]) -> None:
    """Give a reducer the sums that another one of its kind has told, instead of its own.

    >>> class Count:
    ...     totals = ("n",)
    ...     n = 1
    >>> one = Count()
    >>> put_back(one, {"n": 5})
    >>> one.n
    5
    """
    totals_of(mine)
    for name, value in sums.items():
        current = getattr(mine, name)
        if hasattr(type(current), "totals"):
            put_back(current, value)
        elif isinstance(current, dict) and any(hasattr(type(part), "totals") for part in current.values()):
            for key, part in current.items():
                put_back(part, value[key])
        else:
            setattr(mine, name, value)


def absorb(mine: Any, sums: dict[str, Any]) -> None:
    """Add another process's sums to a reducer: numbers are added, what only the other has is taken over.

    A reducer names its sums in `totals`; one whose state is more than sums has a method `absorb` of its own.

    Args:
        mine: the reducer; changed in place.
        sums: the other's sums by name.

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
        own(sums)
        return
    for name, value in sums.items():
        setattr(mine, name, sum_of(getattr(mine, name), value))


def sum_of(mine: Any, other: Any) -> Any:
    """Two numbers, arrays, tensors, counters or dictionaries of them, added.

    >>> sum_of({"a": 1}, {"a": 2, "b": 3})
    {'a': 3, 'b': 3}
    """
    if hasattr(type(mine), "totals"):
        absorb(mine, other)
        return mine
    if isinstance(mine, Counter):
        return mine + other
    if isinstance(mine, dict):
        for key, value in other.items():
            mine[key] = sum_of(mine[key], value) if key in mine else value
        return mine
    if isinstance(mine, Tensor):
        return mine + other.to(mine.device)
    if isinstance(mine, np.ndarray | int | float):
        return mine + other
    raise HeadwiseError(f"cannot bring together {type(mine).__name__}; give its reducer a method absorb")


def packed(value: Any) -> Any:
    """The same in what `torch.load` reads without running code: arrays and counters are marked.

    >>> unpacked(packed({("a", 1): np.arange(2)}))
    {('a', 1): array([0, 1])}
    """
    if isinstance(value, np.ndarray):
        return "array", torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return kind, [(key, packed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [packed(item) for item in value]
    if value is None or isinstance(value, Tensor | bool | int | float | str):
        return value
    raise HeadwiseError(f"cannot keep {type(value).__name__} in a file; sums are numbers, arrays, tensors and tables")


def unpacked(value: Any) -> Any:
    """What `packed` was given.

    >>> unpacked(packed(Counter(a=2)))
    Counter({'a': 2})
    """
    if not isinstance(value, tuple):
        return value
    kind, content = value
    if kind == "array":
        return content.numpy()
    parts = [(part[0], unpacked(part[1])) for part in content] if kind in ("dict", "counter") else content
    if kind == "dict":
        return dict(parts)
    if kind == "counter":
        return Counter(dict(parts))
    items = [unpacked(item) for item in content]
    return tuple(items) if kind == "tuple" else items
