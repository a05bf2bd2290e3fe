"""By hand: what a plan says of the heads that a person added to it, or took out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_REMOVED, _KEPT = "removed by hand; decided: ", "kept by hand; decided: "
#: How the reasons of a decision begin, for heads that go and heads that stay (`selection.select`).
_GOES, _STAYS = "number ", "kept: "


def by_hand(remove: Mapping[str, Sequence[int]], reasons: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """The reasons of a plan; of heads that do not do what the decision said, that a person wants it so.

    >>> by_hand({"0": [1]}, {"0": {0: "number 1 of 1 to go", 1: "kept: a rule"}})
    {'0': {0: 'kept by hand; decided: number 1 of 1 to go', 1: 'removed by hand; decided: kept: a rule'}}
    """
    found: dict[str, dict[int, str]] = {}
    for site, heads in reasons.items():
        going, found[site] = set(remove.get(site, ())), dict(heads)
        for head, told in heads.items():
            # A person may have changed it before, and back now.
            said = found[site][head] = told.removeprefix(_REMOVED).removeprefix(_KEPT)
            if said.startswith(_STAYS if head in going else _GOES):
                found[site][head] = f"{_REMOVED if head in going else _KEPT}{said}"
    return found


def edited(reasons: Mapping[str, Mapping[Any, str]]) -> tuple[int, int]:
    """How many heads a person added to what goes, and how many were taken out of it.

    >>> edited({"0": {0: "kept by hand; decided: …", 1: "removed by hand; decided: …", 2: "kept: a rule"}})
    (1, 1)
    """
    said = [reason for heads in reasons.values() for reason in heads.values()]
    return sum(one.startswith(_REMOVED) for one in said), sum(one.startswith(_KEPT) for one in said)
