"""The gain: what all settings that were timed say of the speed, as part of a sentence and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwise.prune.report.document import Figure
from headwise.prune.report.doubt import FEWEST_ROUNDS, apart, doubt
from headwise.prune.report.formats import Number, fixed, milliseconds, plural, times

Rows = Sequence[Mapping[str, Any]]


def leading_row(speed: Mapping[str, Any]) -> dict[str, Any]:
    """The setting with the most tokens: the one that limits and comparisons go by.

    >>> leading_row({"rows": [{"batch": 1, "length": 32}, {"batch": 8, "length": 128}]})
    {'batch': 8, 'length': 128}
    """
    rows = speed.get("rows", [])
    return dict(max(rows, key=lambda row: (row["batch"] * row["length"], row["batch"]))) if rows else {}


def setting(row: Mapping[str, Any]) -> str:
    """What was timed in a row.

    >>> setting({"batch": 8, "length": 128})
    'batch 8 × length 128'
    """
    return f"batch {row['batch']} × length {row['length']}"


def gain_in_words(rows: Rows) -> str:
    """The change of speed over all settings as part of a sentence: its range, and in how many it is sure.

    >>> gain_in_words([{"ratio": {"median": 1.19}, "significant": True}])
    '1.19 times as fast'
    >>> gain_in_words([{"ratio": {"median": 1.01, "low": 0.9, "high": 1.1}, "significant": False}])
    'no significant difference in speed'
    >>> noisy = {"ratio": {"median": 1.09, "low": 1.07, "high": 1.14}, "p": 0.01, "significant": False}
    >>> gain_in_words([noisy, {"ratio": {"median": 1.13}, "significant": True}])
    "1.09 to 1.13 times as fast in 2 settings, in 1 of them faster beyond the machine's own noise"
    """
    sure = [row for row in rows if row.get("significant")]
    fast = f"{_range(_medians(rows), fixed, ' to ')} times as fast"
    if len(rows) == 1:
        return fast if sure else _nothing_sure(rows)
    if not sure:
        return f"{_nothing_sure(rows)} in any of {len(rows)} settings ({fast})"
    if len(sure) == len(rows):
        return f"{fast} in all {len(rows)} settings"
    # Where an interval leaves out 1 and all the same decides nothing, it is the machine that moves as much.
    noise = all(map(apart, rows))
    ways = {"faster": sum(m > 1 for m in _medians(sure)), "slower": sum(m <= 1 for m in _medians(sure))}
    found = [
        f"in {count} of them " + (f"{way} beyond the machine's own noise" if noise else f"significantly {way}")
        for way, count in ways.items()
        if count
    ]
    return f"{fast} in {len(rows)} settings, {', '.join(found)}"


def gain(speed: Mapping[str, Any]) -> Figure:
    """The range of the speed ratios, in how many settings it is sure, and the setting with the most tokens by itself."""
    rows, row = speed["rows"], leading_row(speed)
    ratio, medians = row["ratio"], _medians(rows)
    where = setting(row)
    interval = f"95 % interval {times(ratio.get('low'))} to {times(ratio.get('high'))}"
    doubted = f": {doubt(row)}" if doubt(row) else ""
    predicted = [value for r in rows if (value := r.get("operation_ratio")) is not None]
    foretold = f"the removed operations alone predict {_range(predicted, times, ' to ')}"
    if len(rows) == 1:
        value, details = f"{times(medians[0])} speed", [f"measured at {where}, {interval}", foretold]
        details += [doubt(row)] if doubted else []
    else:
        value = f"{_range(medians, fixed, '–')}×"
        details = [f"the speed of before, over {len(rows)} settings", foretold, _sure(rows)]
        details.append(f"largest, {where}: {times(ratio['median'])}, {interval}{doubted}")
    said = speed.get("forecast")
    if said:
        details.append(
            f"asked for at most {milliseconds(said['asked'])} at {said['batch']} × {said['length']}: the latency table "
            f"forecast {milliseconds(said['then'])}, measured {milliseconds(said['measured'].get('median'))}"
        )
    ways = {median > 1 for median in _medians([r for r in rows if r.get("significant")])}
    return Figure("Gain", value, tuple(details), "plain" if not ways else "good" if all(ways) else "bad")


def _sure(rows: Rows) -> str:
    """In how many settings the models differ, and in how many by more than the machine does by itself."""
    sure, told = sum(bool(row.get("significant")) for row in rows), sum(map(apart, rows))
    said = f"told apart from no difference in {told} of {len(rows)}"
    return said if told == sure else f"{said}, from the machine's own noise in {sure}"


def _nothing_sure(rows: Rows) -> str:
    """That no setting shows a difference, or why none could."""
    rounds = [row["rounds"] for row in rows if row.get("rounds") is not None]
    if len(rounds) == len(rows) and max(rounds) < FEWEST_ROUNDS:
        return f"no difference in speed that {plural(max(rounds), 'round')} could tell"
    noise = all(map(apart, rows))
    return "no difference in speed beyond the machine's own noise" if noise else "no significant difference in speed"


def _medians(rows: Rows) -> list[float | int]:
    return [row["ratio"]["median"] for row in rows]


def _range(values: Sequence[float | int], shown: Callable[[Number], str], between: str) -> str:
    """The least and the largest value, or the one that both are when shown; a dash for none.

    >>> _range([1.131, 1.129, 1.13], fixed, " to ")
    '1.13'
    """
    ends = dict.fromkeys(shown(end(values)) for end in (min, max)) if values else {shown(None): None}
    return between.join(ends)
