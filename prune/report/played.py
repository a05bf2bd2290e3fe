"""What heads do: every role with the heads that play it and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.prune.report.document import Evidence, Head, Intervention, Role
from headwise.prune.report.folder import Folder
from headwise.prune.report.heads import finite, role_names

_NUMBERS = ("score", "chance", "excess", "low", "high", "p", "q", "n")


def roles_in(folder: Folder, heads: Sequence[Head]) -> tuple[Role, ...]:
    """Every role that was looked for, also those that no head plays; the most played first."""
    roles = [_role(folder, heads, name) for name in role_names(folder)]
    return tuple(sorted(roles, key=lambda role: (-role.heads, role.name)))


def interventions_in(folder: Folder) -> tuple[Intervention, ...]:
    """Roles whose heads were silenced to see whether they matter, those with a verdict first.

    >>> facts = {"interventions": {"broad": {"verdict": "not applicable", "reason": "no head plays it"}}}
    >>> interventions_in(Folder("run", ".", (), facts=facts))[0].reason
    'no head plays it'
    """
    found = [_intervention(role, said) for role, said in (folder.facts.get("interventions") or {}).items()]
    order = ("causal", "correlational")
    return tuple(sorted(found, key=lambda t: (order.index(t.verdict) if t.verdict in order else len(order), t.role)))


def role_rule(facts: Mapping[str, Any]) -> str:
    """What makes a head play a role, in words, with the bounds that the analysis was asked for.

    >>> role_rule({"settings": {"effect": 0.2, "level": 0.05}})[:62]
    'A head has a role when its score surely stands above the chanc'
    """
    settings = facts.get("settings")
    asked = settings if isinstance(settings, Mapping) else {}
    effect, level = (finite(asked.get(name)) for name in ("effect", "level"))
    sure = "" if level is None else f" of at most {level:g}"
    much = "0.10 or what the analysis was asked for" if effect is None else f"at least {effect:.2f}"
    return (
        f"A head has a role when its score surely stands above the chance level (q{sure}: p, corrected for all heads and "
        f"roles together by the false-discovery rate), and does so by {much}. A role that holds others within it has to "
        "go as far beyond them, and a confident head puts more than half of a row on one token. n counts places in the "
        "texts; interval and q go by whole texts, so that q stays large where few texts have such a place."
    )


def _intervention(role: str, said: Mapping[str, Any]) -> Intervention:
    others = said.get("random") or {}
    return Intervention(
        role=role,
        verdict=str(said["verdict"]),
        reason=str(said.get("reason") or ""),
        says=str(said.get("says") or ""),
        measured=str(said.get("measured") or said.get("probe") or ""),
        heads=tuple(said.get("heads") or ()),
        effect=_number(said.get("effect")),
        low=_number(others.get("low")),
        high=_number(others.get("high")),
        draws=said.get("draws"),
        p=_number(said.get("p")),
    )


def _number(value: float | int | None) -> float | None:
    """JSON writes whole numbers without a point."""
    return None if value is None else float(value)


def _role(folder: Folder, heads: Sequence[Head], name: str) -> Role:
    arrays = {part: folder.array(f"roles/{name}/{part}") for part in _NUMBERS}
    score, chance = arrays["score"], arrays["chance"]
    if score is None:
        raise KeyError(f"roles/{name}/score")
    excess = arrays["excess"]
    if excess is None:
        excess = score - (0.0 if chance is None else chance)
    arrays["excess"] = excess
    strength = np.nan_to_num(excess, nan=-np.inf)
    assigned = folder.arrays.get(f"roles/{name}/assigned")
    playing = np.flatnonzero(assigned) if assigned is not None else np.array([], dtype=int)
    playing = playing[np.argsort(-strength[playing], kind="stable")]
    best = int(strength.argmax()) if len(strength) and np.isfinite(strength.max()) else None
    return Role(
        name=name,
        heads=len(playing),
        kept=sum(heads[i].kept for i in playing.tolist()),
        strongest=None if best is None else _evidence(heads[best], best, arrays),
        rows=tuple(_evidence(heads[i], i, arrays) for i in playing.tolist()),
        says=str((folder.facts.get("roles") or {}).get(name) or ""),
    )


def _evidence(head: Head, i: int, arrays: dict[str, np.ndarray | None]) -> Evidence:
    numbers = {part: None if array is None else finite(array[i]) for part, array in arrays.items()}
    return Evidence(label=head.label, kept=head.kept, **numbers)
