"""Every head of the model as one row: what was decided, what it does, how it compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.prune.report.document import Head, Stack
from headwise.prune.report.folder import Folder

FIFTHS = 5


def head_rows(folder: Folder, measure: str) -> tuple[Head, ...]:
    """One `Head` for each head of the dense model, in canonical order.

    Args:
        folder: the run folder's contents.
        measure: the similarity measure that says which head is nearest, or ``.
    """
    gone = removed_heads(folder.plan)
    scores, _ = scores_of(folder)
    ranks, shades = ranks_of(scores)
    primary, played = roles_of(folder)
    matrix = folder.array(f"similarity/{measure}") if measure else None
    nearest, values = nearest_of(matrix, len(folder.heads))
    label, representative = folder.arrays.get("clusters/label"), folder.arrays.get("clusters/representative")
    numbers = {
        name.partition("/")[2]: np.asarray(array, dtype=np.float64)
        for name, array in sorted(folder.arrays.items())
        if name.startswith(("statistics/", "importance/")) and array.ndim == 1
    }
    names = [f"{site}.{head}" for site, head in folder.heads]
    rows = []
    for i, (site, head) in enumerate(folder.heads):
        track, layer = place(site, folder.facts)
        other = nearest[i]
        rows.append(
            Head(
                site=site,
                head=head,
                label=names[i],
                track=track,
                layer=layer,
                kept=(site, head) not in gone,
                role=primary[i],
                roles=played[i],
                score=finite(scores[i]),
                rank=ranks[i],
                shade=shades[i],
                reason=str(folder.plan.get("reasons", {}).get(site, {}).get(str(head), "")),
                cluster=None if label is None or label[i] < 0 else int(label[i]),
                representative=None if representative is None else bool(representative[i]),
                nearest="" if other is None else names[other],
                nearest_value=values[i],
                numbers={name: finite(array[i]) for name, array in numbers.items()},
            )
        )
    return tuple(rows)


def removed_heads(plan: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """The heads that a plan removes, as (site, original index).

    >>> sorted(removed_heads({"remove": {"3": [1, 7]}}))
    [('3', 1), ('3', 7)]
    """
    return frozenset((site, int(head)) for site, heads in plan.get("remove", {}).items() for head in heads)


def place(site: str, facts: Mapping[str, Any]) -> tuple[str, int]:
    """Which map a site is drawn in, and at which layer.

    >>> place("3", {}), place("decoder.cross.5", {}), place("pool.0", {})
    (('', 3), ('decoder.cross', 5), ('pool', 0))
    """
    track, _, last = site.rpartition(".")
    known = next((s for s in facts.get("sites", ()) if isinstance(s, dict) and s.get("name") == site), {})
    layer = known.get("layer", last)
    return track, int(layer) if str(layer).isdecimal() else 0


def scores_of(folder: Folder) -> tuple[np.ndarray, str]:
    """The score of every head (NaN = unknown) and its name: the plan's, else the first importance measured.

    >>> scores_of(Folder("run", ".", (("0", 0),), {"importance/gradient": np.array([0.5])}))
    (array([0.5]), 'gradient')
    """
    plan = folder.plan.get("score", {})
    if plan:
        scores = [_at(plan.get(site, ()), head) for site, head in folder.heads]
        recipe = folder.recipe.get("score")
        made = folder.plan.get("made_with", {}).get("score")
        return np.array(scores, dtype=np.float64), _kind(recipe) or _kind(made) or "score"
    measured = sorted(name for name in folder.arrays if name.startswith("importance/"))
    if measured:
        return np.asarray(folder.arrays[measured[0]], dtype=np.float64), measured[0].partition("/")[2]
    return np.full(len(folder.heads), np.nan), ""


def ranks_of(scores: np.ndarray) -> tuple[list[int | None], list[int | None]]:
    """Rank of every score (1 = highest) and its fifth (5 = highest); None where there is no score.

    Equal scores have equal ranks: the best that any of them could have.

    >>> ranks_of(np.array([0.1, 0.9, float("nan"), 0.5]))
    ([3, 1, None, 2], [2, 5, None, 4])
    >>> ranks_of(np.array([0.1, 0.5, 0.5]))
    ([3, 1, 1], [2, 5, 5])
    """
    from scipy.stats import rankdata

    known = np.flatnonzero(np.isfinite(scores))
    ranks: list[int | None] = [None] * len(scores)
    shades: list[int | None] = [None] * len(scores)
    for i, rank in zip(known, rankdata(-scores[known], method="min").astype(int).tolist(), strict=True):
        ranks[i] = rank
        shades[i] = FIFTHS - int(FIFTHS * (rank - 1) / len(known))
    return ranks, shades


def role_names(folder: Folder) -> list[str]:
    """Roles that were looked for, in alphabetical order.

    >>> arrays = {"roles/self/score": np.zeros(1), "roles/broad/score": np.zeros(1)}
    >>> role_names(Folder("run", ".", (("0", 0),), arrays))
    ['broad', 'self']
    """
    found = (name.split("/")[1] for name in folder.arrays if name.startswith("roles/") and name.endswith("/score"))
    return sorted(found)


def roles_of(folder: Folder) -> tuple[list[str], list[tuple[str, ...]]]:
    """The primary role and all assigned roles of every head, the one furthest above chance first.

    >>> arrays = {f"roles/self/{part}": np.ones(1) for part in ("score", "excess", "assigned")}
    >>> roles_of(Folder("run", ".", (("0", 0),), arrays))
    (['self'], [('self',)])
    """
    standing: list[list[tuple[float, str]]] = [[] for _ in folder.heads]
    for role in role_names(folder):
        assigned, excess = folder.arrays.get(f"roles/{role}/assigned"), folder.array(f"roles/{role}/excess")
        for i in [] if assigned is None else np.flatnonzero(assigned):
            above = 0.0 if excess is None or not np.isfinite(excess[i]) else float(excess[i])
            standing[i].append((above, role))
    ordered = [[role for _, role in sorted(found, key=lambda item: (-item[0], item[1]))] for found in standing]
    return [roles[0] if roles else "" for roles in ordered], [tuple(roles) for roles in ordered]


def nearest_of(matrix: np.ndarray | None, heads: int = 0) -> tuple[list[int | None], list[float | None]]:
    """For every head the most similar other head and that similarity; `heads` Nones where nothing was measured.

    >>> nearest_of(np.array([[1.0, 0.2, 0.9], [0.2, 1.0, 0.1], [0.9, 0.1, 1.0]]))
    ([2, 0, 0], [0.9, 0.2, 0.9])
    """
    if matrix is None or len(matrix) < 2:
        nothing: list[Any] = [None] * (heads if matrix is None else len(matrix))
        return nothing, nothing
    rest = np.where(np.isfinite(matrix), matrix, -np.inf)
    np.fill_diagonal(rest, -np.inf)
    best = rest.argmax(axis=1)
    values = rest[np.arange(len(rest)), best]
    known = np.isfinite(values)
    return (
        [int(i) if ok else None for i, ok in zip(best, known, strict=True)],
        [round(float(v), 6) if ok else None for v, ok in zip(values, known, strict=True)],
    )


def stacks_of(heads: Sequence[Head], facts: Mapping[str, Any]) -> tuple[Stack, ...]:
    """Head counts of every stack, before and after, in query heads and key/value heads.

    >>> stacks_of([Head("0", 0, "0.0", "", 0), Head("0", 1, "0.1", "", 0, kept=False)], {})
    (Stack(track='', layers=1, heads=2, kept=1, kv_heads=None, kv_groups_kept=None),)
    """
    sites = {s["name"]: s for s in facts.get("sites", ()) if isinstance(s, dict) and "name" in s}
    stacks = []
    for track in dict.fromkeys(head.track for head in heads):
        own = [head for head in heads if head.track == track]
        names = dict.fromkeys(head.site for head in own)
        known = [sites[name] for name in names if name in sites and sites[name].get("kv_heads")]
        kv_heads = sum(int(site["kv_heads"]) for site in known) if len(known) == len(names) else None
        groups = None
        if kv_heads is not None:
            share = {name: max(1, int(sites[name]["heads"]) // int(sites[name]["kv_heads"])) for name in names}
            groups = len({(head.site, head.head // share[head.site]) for head in own if head.kept})
        kept = sum(head.kept for head in own)
        stacks.append(Stack(track, len(names), len(own), kept, kv_heads, groups))
    return tuple(stacks)


def finite(value: Any) -> float | None:
    """A float, or None where there is no number.

    >>> finite(np.float32(0.5)), finite(float("nan")), finite(None)
    (0.5, None, None)
    """
    if value is None:
        return None
    plain = float(value)
    return plain if np.isfinite(plain) else None


def _at(scores: Sequence[float | None], head: int) -> float:
    value = scores[head] if head < len(scores) else None
    return float("nan") if value is None else float(value)


def _kind(score: Any) -> str:
    if isinstance(score, Mapping):
        return str(score.get("kind", ""))
    return score if isinstance(score, str) else ""
