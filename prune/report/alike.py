"""Which heads are alike: the matrix, its tree, its groups, the strongest pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.prune.report.document import Cluster, Head, Pair, Similarity
from headwise.prune.report.folder import Folder
from headwise.prune.report.heads import finite

# A picture of more heads has less than one screen pixel a head and costs megabytes: pairs say more.
MOST_DRAWN = 1024
PAIRS = 20
NAMES = {
    "pearson": "Pearson correlation of maps",
    "cosine": "cosine of contexts",
    "hellinger": "Hellinger affinity",
    "jensen_shannon": "Jensen-Shannon similarity",
    "cka": "linear CKA of contexts",
}
CHANCE = {
    "pearson": "every row is centred on its own uniform distribution, so independent heads correlate at 0",
}


def measures(folder: Folder) -> list[str]:
    """Names of the measures taken, in alphabetical order.

    >>> taken = {"similarity/pearson": np.eye(1), "similarity/pearson_chance": np.zeros((1, 1))}
    >>> measures(Folder("run", ".", (("0", 0),), taken))
    ['pearson']
    """
    names = (name.partition("/")[2] for name in folder.arrays if name.startswith("similarity/"))
    return sorted(name for name in names if not name.endswith("_chance"))


def main_measure(folder: Folder) -> str:
    """The measure that the page draws: row-centred Pearson correlation if it was taken, or ``."""
    names = measures(folder)
    return "pearson" if "pearson" in names else next(iter(names), "")


def similarity_of(folder: Folder, heads: Sequence[Head]) -> Similarity | None:
    """All pairs of heads as the page shows them, or None if nothing was measured."""
    measure = main_measure(folder)
    matrix = folder.array(f"similarity/{measure}") if measure else None
    if matrix is None or len(matrix) < 2:
        return None
    drawn = len(matrix) <= MOST_DRAWN
    order, present = (folder.arrays.get(f"clusters/{name}") for name in ("order", "present"))
    linkage = folder.array("clusters/linkage")
    everyone = tuple(range(len(matrix)))
    positions = everyone if order is None else tuple(int(i) for i in order)
    return Similarity(
        measure=NAMES.get(measure, measure),
        chance=CHANCE.get(measure, ""),
        array=f"evidence/arrays.safetensors: similarity/{measure}",
        heads=len(matrix),
        pairs=strongest_pairs(folder, heads, measure, matrix),
        clusters=clusters_of(heads, positions),
        present=everyone if present is None else tuple(int(i) for i in present),
        order=positions,
        linkage=() if linkage is None or not drawn else tuple(tuple(row) for row in linkage.tolist()),
        threshold=_threshold(folder),
        groups=_groups(folder),
        drawn=drawn,
        matrix=matrix if drawn else None,
    )


def strongest_pairs(folder: Folder, heads: Sequence[Head], measure: str, matrix: np.ndarray) -> tuple[Pair, ...]:
    """The pairs with the largest absolute similarity."""
    rows, columns = np.triu_indices(len(matrix), k=1)
    sizes = np.nan_to_num(np.abs(matrix[rows, columns]), nan=-1.0)
    amount = min(PAIRS, len(sizes))
    top = np.argpartition(-sizes, amount - 1)[:amount]
    top = top[np.lexsort((columns[top], rows[top], -sizes[top]))]
    names = [name for name in measures(folder) if name != measure]
    others = {NAMES.get(name, name): folder.arrays[f"similarity/{name}"] for name in names}
    # Where rows were drawn, how far a number may be off.
    errors = {name: folder.array(f"similarity_error/{name}") for name in measures(folder)}
    others |= {f"standard error of {NAMES.get(n, n)}": error for n, error in errors.items() if error is not None}
    chance = folder.array(f"similarity/{measure}_chance")
    return tuple(
        Pair(
            first=heads[i].label,
            second=heads[j].label,
            value=float(matrix[i, j]),
            chance=None if chance is None else finite(chance[i, j]),
            others={name: finite(array[i, j]) for name, array in others.items()},
            first_kept=heads[i].kept,
            second_kept=heads[j].kept,
        )
        for i, j in zip(rows[top].tolist(), columns[top].tolist(), strict=True)
        if np.isfinite(matrix[i, j])
    )


def clusters_of(heads: Sequence[Head], order: Sequence[int]) -> tuple[Cluster, ...]:
    """Groups of two or more interchangeable heads, in the order of the tree.

    >>> heads = [Head("0", i, f"0.{i}", "", 0, cluster=number) for i, number in enumerate((0, 1, 0))]
    >>> clusters_of(heads, [1, 2, 0])[0].members
    ('0.2', '0.0')
    """
    members: dict[int, list[tuple[int, Head]]] = {}
    for position, i in enumerate(order):
        number = heads[i].cluster
        if number is not None:
            members.setdefault(number, []).append((position, heads[i]))
    return tuple(
        Cluster(
            number=number,
            members=tuple(head.label for _, head in found),
            representatives=tuple(head.label for _, head in found if head.representative),
            kept=tuple(head.label for _, head in found if head.kept),
            start=found[0][0],
        )
        for number, found in members.items()
        if len(found) > 1
    )


def _threshold(folder: Folder) -> float | None:
    return finite(_said(folder, "threshold")) if _said(folder, "clusters") is None else None


def _groups(folder: Folder) -> str:
    """How the groups were made, and whether they are the same on resampled texts; empty if that is not known."""
    threshold, count = finite(_said(folder, "threshold")), _said(folder, "clusters")
    if count is not None:
        made = f"The tree is cut into {count} groups."
    elif threshold is not None:
        made = f"Heads are in one group where they are alike by {threshold:g} on average."
    else:
        return ""
    made = f"{made} {_stood_for(_said(folder, 'representative'))}".rstrip()
    mean, low, high = (finite(_said(folder, part)) for part in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        # Two parts of the texts are the fewest that can be drawn from.
        blocks = finite(_said(folder, "blocks"))
        few = "The texts are too few to tell whether others would make the same groups."
        return f"{made} {few}" if blocks is not None and blocks < 2 else made
    return (
        f"{made} Groups of resampled texts agree with them by {mean:.2f} (adjusted Rand index: 1 the same groups, 0 "
        f"chance; 95 % of resamples from {low:.2f} to {high:.2f})."
    )


def _stood_for(rule: str | None) -> str:
    """Which head of a group stands for it; empty where older evidence does not say."""
    known = {
        None: "",
        "medoid": "The head most alike to the others stands for a group.",
        "replaceability": "The head whose output the others of its site can rebuild least stands for a group.",
    }
    return known.get(rule, f"The head that matters most by the score {rule} stands for a group.")


def _said(folder: Folder, part: str) -> Any:
    found = folder.facts.get("clusters")
    return found.get(part) if isinstance(found, dict) else None
