"""Doubt: why a ratio of times that looks like a difference is not called one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.prune.report import formats

#: With fewer rounds no sign test reaches 5 %, whatever was measured.
FEWEST_ROUNDS = 6
_LEVEL = 0.05


def apart(row: Mapping[str, Any]) -> bool:
    """Whether the two times of a row differ by more than chance, be it no more than the machine does by itself.

    >>> apart({"ratio": {"low": 1.07, "high": 1.14}, "p": 0.01}), apart({"ratio": {"low": 0.9, "high": 1.2}})
    (True, False)
    """
    if row.get("significant"):
        return True
    low, high = ((row.get("ratio") or {}).get(end) for end in ("low", "high"))
    p, rounds = row.get("p"), row.get("rounds")
    enough = rounds is None or rounds >= FEWEST_ROUNDS
    if low is None or high is None or low <= 1 <= high:
        return False
    return enough and (p is None or p < _LEVEL)


def noise(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The ratios that the machine alone can make of a setting, in either direction; None where it was not tried.

    >>> noise({"drift": {"low": 0.8, "high": 1.1}})
    (0.8, 1.25)
    """
    low, high = ((row.get("drift") or {}).get(end) for end in ("low", "high"))
    ends = [end for end in (high, 1 / low if low else None) if end]
    if not ends:
        return None
    alone = max(1.0, *ends)
    return 1 / alone, alone


def doubt(row: Mapping[str, Any]) -> str:
    """Why the two times of a row do not count as different, in words; "" if they do.

    Beside an interval that excludes 1 stands what is held against it: too few rounds, or how far the machine was from
    itself when the same model was timed twice.

    >>> doubt({"significant": False, "ratio": {"low": 0.9, "high": 1.2}})
    'no significant difference'
    >>> doubt({"significant": False, "ratio": {"low": 1.1, "high": 1.2}, "p": 0.25, "rounds": 3})
    '3 rounds are too few to tell'
    >>> doubt({"significant": False, "ratio": {"low": 1.1, "high": 1.2}, "p": 0.01, "drift": {"low": 0.8, "high": 1.05}})
    'no significant difference: the same model against itself varied up to 1.25×'
    """
    if row.get("significant"):
        return ""
    ratio, p, rounds = (row.get(name) for name in ("ratio", "p", "rounds"))
    if rounds is not None and rounds < FEWEST_ROUNDS:
        return f"{formats.plural(rounds, 'round')} {'is' if rounds == 1 else 'are'} too few to tell"
    low, high = (ratio or {}).get("low"), (ratio or {}).get("high")
    if low is None or high is None or low <= 1 <= high:
        return "no significant difference"
    if p is not None and p >= _LEVEL:
        return f"no significant difference: {formats.p_is(p)}"
    alone = noise(row)
    if alone is None:
        return "no significant difference"
    return f"no significant difference: the same model against itself varied up to {formats.times(alone[1])}"
