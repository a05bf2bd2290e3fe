"""Which roles a head plays: those that are significant and large, over all heads and roles at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headwise.analysis.inference import benjamini_hochberg, cell_interval, ratio_interval, sign_flip_p
from headwise.analysis.inference.cells import PARTS
from headwise.analysis.roles.relation import Role

#: The least excess over chance that makes a role: a tenth of the attention mass, or ten points of accuracy.
EFFECT = 0.10
#: The false-discovery rate over all heads and roles.
LEVEL = 0.05


@dataclass(frozen=True)
class Measured:
    """One role's sums by cell of texts, `[cell, head]` each, ready for inference.

    Attributes:
        score: summed score of the rows.
        chance: summed chance level of the rows.
        excess: summed excess of the rows; score − chance unless the role says otherwise.
        rows: how many rows (or cases) were summed; 0 where the role does not apply.
        eligible: `[head]`, whether a head may play the role at all; None for all.
        null: summed excess of the same rows under a further null; None for none.
    """

    score: Float[np.ndarray, "cell head"]
    chance: Float[np.ndarray, "cell head"]
    excess: Float[np.ndarray, "cell head"]
    rows: Float[np.ndarray, "cell head"]
    eligible: np.ndarray | None = None
    null: Float[np.ndarray, "cell head"] | None = None


def inferred(sums: Measured, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Score, chance, excess with its interval, p and n of every head, `[head]` each, from sums by cell.

    Excess is a ratio of sums over cells; [low, high] is its 95 % bootstrap interval over cells; p comes from
    flipping the signs of the cells' excesses. NaN where the role does not apply. With a further null there is an
    array `null`, what the score is under it; excess is then over the larger of chance and null, and p is the
    larger of the two (intersection-union test).

    Args:
        sums: of one role.
        seed: of the bootstrap.

    >>> rows = np.ones((30, 1))
    >>> found = inferred(Measured(score=0.6 * rows, chance=0.1 * rows, excess=0.5 * rows, rows=rows))
    >>> found["excess"].tolist(), bool(found["p"] < 1e-6)
    ([0.5], True)
    """
    sums = _filled(sums)
    total = sums.rows.sum(0)
    counted = np.where(total > 0, total, np.nan)
    found = {"score": sums.score.sum(0) / counted, "chance": sums.chance.sum(0) / counted}
    p = sign_flip_p(np.where(sums.rows > 0, sums.excess, np.nan))
    if sums.null is None:
        interval = ratio_interval(sums.excess, sums.rows, seed=seed)
    else:
        found["null"] = found["chance"] + sums.null.sum(0) / counted
        p = np.fmax(p, sign_flip_p(np.where(sums.rows > 0, sums.excess - sums.null, np.nan)))
        table = np.stack([sums.excess, sums.null, sums.rows], axis=1)
        interval = cell_interval(table, _beyond_both, counts=sums.rows > 0, seed=seed)
    found |= {"excess": np.asarray(interval.value), "low": np.asarray(interval.low), "high": np.asarray(interval.high)}
    found |= {"p": p, "n": total}
    return found if sums.eligible is None else found | {"eligible": sums.eligible}


def by_part(sums: Measured) -> Float[np.ndarray, "head part 2"]:
    """Excess and rows of every head by part of the texts: enough to ask what other texts would have said.

    With a further null, excess is over that one of the two that is larger on all texts.

    >>> by_part(Measured(*np.ones((4, 256, 3)))).shape
    (3, 64, 2)
    """
    excess = sums.excess
    if sums.null is not None:
        excess = excess - np.where(sums.null.sum(0) > 0, sums.null, 0.0)
    tables = [table.reshape(-1, PARTS, table.shape[1]).sum(0).T for table in (excess, sums.rows)]
    return np.stack(tables, axis=-1).astype(np.float32)


def _filled(sums: Measured) -> Measured:
    """The cells that some text fell into: resampling must not draw from the others."""
    filled = sums.rows.any(1)
    return Measured(
        sums.score[filled],
        sums.chance[filled],
        sums.excess[filled],
        sums.rows[filled],
        sums.eligible,
        None if sums.null is None else sums.null[filled],
    )


def _beyond_both(totals: np.ndarray) -> np.ndarray:
    """Excess over chance or over the null, whichever is less, of resampled totals `[resample, 3, head]`."""
    rows = np.where(totals[:, 2] > 0, totals[:, 2], np.nan)
    return np.asarray((totals[:, 0] - np.maximum(totals[:, 1], 0.0)) / rows)


def assign(
    tests: Mapping[str, Mapping[str, np.ndarray]],
    roles: Mapping[str, Role],
    *,
    effect: float = EFFECT,
    level: float = LEVEL,
) -> dict[str, np.ndarray]:
    """Evidence arrays `roles/<role>/<part>` with `q` and `assigned`, and `roles/primary`.

    q is p by Benjamini and Hochberg over all heads and roles. A role is assigned where q ≤ `level` and excess
    ≥ `effect`. A role that contains others (`Role.beyond`) is assigned only for what exceeds the best of them
    by `effect`; one within another (`Role.within`) only where the wider adds less than that. `roles/primary` is
    the assigned role with the largest excess, as its index in the order of `tests`, −1 for none.

    Args:
        tests: per role what `inferred` gives; further arrays are passed through, `eligible` limits the heads.
        roles: the roles' descriptions.
        effect: least excess.
        level: false-discovery rate.

    >>> found = {"p": np.array([1e-6, 1e-6]), "excess": np.array([0.5, 0.01])}
    >>> assign({"previous": found}, {})["roles/previous/assigned"].tolist()
    [True, False]
    """
    if not tests:
        return {}
    found: dict[str, np.ndarray] = {}
    q = dict(zip(tests, benjamini_hochberg(np.stack([parts["p"] for parts in tests.values()])), strict=True))
    for name, parts in tests.items():
        eligible = parts.get("eligible", np.ones(len(parts["p"]), dtype=bool))
        significant = np.nan_to_num(q[name], nan=1.0) <= level
        assigned = eligible & significant & (np.nan_to_num(parts["excess"], nan=-np.inf) >= effect)
        shown = {part: values for part, values in parts.items() if part != "eligible"}
        found |= {f"roles/{name}/{part}": v for part, v in (shown | {"q": q[name], "assigned": assigned}).items()}
    _take_back_the_contained(found, list(tests), roles, effect)
    found["roles/primary"] = _primary(found, list(tests))
    return found


def _take_back_the_contained(
    found: dict[str, np.ndarray], names: list[str], roles: Mapping[str, Role], effect: float
) -> None:
    for name in names:
        inner = [part for part in (roles[name].beyond if name in roles else ()) if part in names]
        if inner:
            best = np.max([np.nan_to_num(found[f"roles/{part}/excess"]) for part in inner], axis=0)
            found[f"roles/{name}/assigned"] &= np.nan_to_num(found[f"roles/{name}/excess"]) - best >= effect
        wider = roles[name].within if name in roles else ""
        if wider in names:
            added = np.nan_to_num(found[f"roles/{wider}/excess"]) - np.nan_to_num(found[f"roles/{name}/excess"])
            found[f"roles/{name}/assigned"] &= added < effect


def _primary(found: Mapping[str, np.ndarray], names: list[str]) -> np.ndarray:
    assigned = np.stack([found[f"roles/{name}/assigned"] for name in names])
    excess = np.where(assigned, np.stack([found[f"roles/{name}/excess"] for name in names]), -np.inf)
    return np.asarray(np.where(assigned.any(0), excess.argmax(0), -1))
