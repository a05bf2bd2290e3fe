"""Clusters of interchangeable heads: who is alike, and who can stand for the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.similarity.gram import cosines

#: Mean similarity at which two clusters are still joined.
THRESHOLD = 0.8
#: Up to this many heads the leaves are put into the order that keeps neighbours closest.
_ORDERED = 400


@dataclass(frozen=True)
class Clusters:
    """A partition of the heads, with the tree that it was cut from.

    Attributes:
        label: cluster of each head, counted from 0 by first member; −1 for heads that are not there.
        order: heads in the order of the tree's leaves.
        linkage: scipy's linkage matrix over the heads in `present` order.
        representative: True for one head of every cluster: the most important, else the medoid.
        present: heads that the tree is made of.
    """

    label: Int[np.ndarray, " head"]
    order: Int[np.ndarray, " present"]
    linkage: Float[np.ndarray, "joint 4"]
    representative: Bool[np.ndarray, " head"]
    present: Int[np.ndarray, " present"]

    def arrays(self) -> dict[str, np.ndarray]:
        """The evidence arrays `clusters/…`."""
        names = ("label", "order", "linkage", "representative", "present")
        return {f"clusters/{name}": getattr(self, name) for name in names}

    def members(self) -> list[list[int]]:
        """Clusters of two heads or more, largest first."""
        groups = [np.flatnonzero(self.label == label).tolist() for label in range(self.label.max(initial=-1) + 1)]
        return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def cluster(
    similarity: Float[np.ndarray, "head head"],
    *,
    threshold: float = THRESHOLD,
    clusters: int | None = None,
    importance: np.ndarray | None = None,
    present: np.ndarray | None = None,
) -> Clusters:
    """Clusters by average linkage on 1 − similarity, cut at a similarity or into a number of clusters.

    Pairs without a similarity (NaN: other stacks, uniform heads) count as unlike, at 0. A head without any
    similarity, not even to itself, is a cluster of its own; it stays in the tree.

    Args:
        similarity: symmetric, 1 on the diagonal, such as `similarity/pearson`.
        threshold: clusters whose heads are on average at least so alike are joined.
        clusters: cut into this many instead.
        importance: high = keep, NaN = unknown; the most important head of a cluster represents it. Without it the
            medoid does: the head that is most alike to the others.
        present: which heads are there; all if not given.

    Raises:
        BadInput: the matrix is not square and symmetric, or the number of clusters impossible.

    >>> alike = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> cluster(alike, importance=np.array([1.0, 2.0, 3.0])).label.tolist()
    [0, 0, 1]
    >>> cluster(alike, importance=np.array([1.0, 2.0, 3.0])).representative.tolist()
    [False, True, True]
    """
    matrix = _checked(similarity, threshold, clusters, importance)
    heads = len(matrix)
    there = np.arange(heads) if present is None else np.flatnonzero(present)
    label = np.full(heads, -1)
    inner = matrix[np.ix_(there, there)]
    if len(there) < 2:
        label[there] = 0
        tree, order = np.zeros((0, 4)), there
    else:
        distance = squareform(np.clip(1 - inner, 0, 2), checks=False)
        tree = hierarchy.linkage(distance, "average", optimal_ordering=len(there) <= _ORDERED)
        order = there[hierarchy.leaves_list(tree)]
        label[there] = _flat(tree, threshold, clusters)
    return Clusters(label, order, tree, _representatives(matrix, label, importance), there)


def check_cut(heads: int, threshold: float, clusters: int | None) -> None:
    """Return if a tree of heads can be cut so; asked before anything is looked at.

    Raises:
        BadInput: with what is possible.

    >>> check_cut(24, THRESHOLD, 20)
    """
    if not -1 <= threshold <= 1:
        raise BadInput(f"threshold: got {threshold}, expected a similarity between -1 and 1")
    if clusters is not None and not 1 <= clusters <= max(1, heads):
        raise BadInput(f"clusters: got {clusters}, expected 1 to {heads}, the number of heads")


def represent(evidence: Evidence, importance: Float[np.ndarray, " head"], rule: str) -> Evidence:
    """The same evidence with each cluster represented by its most important head, and by which rule.

    Args:
        evidence: with clusters; without, or where they say so already, it is returned itself.
        importance: high = keep, NaN = unknown.
        rule: what the importance is, kept as `facts["clusters"]["representative"]`.

    >>> found = cluster(np.ones((2, 2))).arrays()
    >>> chosen = represent(Evidence([("0", 0), ("0", 1)], found), np.array([1.0, 2.0]), "gradient")
    >>> chosen["clusters/representative"].tolist(), chosen.facts["clusters"]
    ([False, True], {'representative': 'gradient'})
    """
    if "clusters/label" not in evidence.arrays:
        return evidence
    label, medoids = (evidence[f"clusters/{part}"] for part in ("label", "representative"))
    chosen = _most_important(label, importance, medoids)
    said = {**evidence.facts.get("clusters", {}), "representative": rule}
    if said == evidence.facts.get("clusters") and np.array_equal(chosen, medoids):
        return evidence
    arrays = evidence.arrays | {"clusters/representative": chosen}
    return replace(evidence, arrays=arrays, facts=evidence.facts | {"clusters": said})


def stability(
    blocks: Float[np.ndarray, "block *sums head head"],
    label: Int[np.ndarray, " head"],
    *,
    likeness: Callable[[np.ndarray], np.ndarray] = cosines,
    threshold: float = THRESHOLD,
    clusters: int | None = None,
    known: Bool[np.ndarray, " head"] | None = None,
    resamples: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """How far the clusters depend on the texts: adjusted Rand index with those of resampled texts.

    1: always the same partition; 0: no more alike than two random ones (Hubert and Arabie 1985). The blocks of
    texts are drawn with replacement and clustered anew.

    Args:
        blocks: sums over each part of the texts: inner products of all pairs of heads, or what `likeness` takes.
        label: the clusters to compare with; −1 for heads that are not there.
        likeness: of all pairs of heads, from sums over texts.
        threshold: as for `cluster`.
        clusters: as for `cluster`.
        known: heads that have a similarity; what others have is rounding, and counts as none. All if not given.
        resamples: how often.
        seed: of the draw.

    Returns:
        `mean`, `low` and `high` (the 95 % range over resamples), `blocks` with any text; NaN under two blocks.

    >>> copies = np.array([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]] * 2)
    >>> stability(copies, np.array([0, 0, 1]))["mean"]
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    filled = np.asarray(blocks)[np.asarray(blocks).reshape(len(blocks), -1).any(1)]
    there = np.flatnonzero(np.asarray(label) >= 0)
    if len(filled) < 2 or len(there) < 2:
        return {"mean": math.nan, "low": math.nan, "high": math.nan, "blocks": len(filled)}
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        weights = generator.multinomial(len(filled), np.full(len(filled), 1 / len(filled)))
        drawn = np.nan_to_num(likeness(np.tensordot(weights.astype(np.float64), filled, axes=1)), nan=0.0)
        if known is not None:
            drawn = drawn * np.outer(known, known)
        distance = squareform(np.clip(1 - drawn[np.ix_(there, there)], 0, 2), checks=False)
        again = _flat(hierarchy.linkage(distance, "average"), threshold, clusters)
        found.append(adjusted_rand_score(np.asarray(label)[there], again))
    low, high = np.quantile(found, [0.025, 0.975])
    return {"mean": float(np.mean(found)), "low": float(low), "high": float(high), "blocks": len(filled)}


def _flat(tree: np.ndarray, threshold: float, clusters: int | None) -> np.ndarray:
    """The tree cut into clusters, numbered from 0 by their first members."""
    if clusters is not None:
        # By count, not by height: heads without a similarity all join at one height, and would go together.
        flat = hierarchy.cut_tree(tree, n_clusters=min(clusters, len(tree) + 1))[:, 0]
    else:
        # The slack keeps copies together whose correlation of 1 was rounded.
        flat = hierarchy.fcluster(tree, 1 - threshold + 1e-9, "distance")
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def _checked(
    similarity: np.ndarray, threshold: float, clusters: int | None, importance: np.ndarray | None
) -> np.ndarray:
    matrix = np.nan_to_num(np.asarray(similarity, dtype=np.float64), nan=0.0)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T, atol=1e-6):
        raise BadInput(f"similarity: got {matrix.shape}, expected a symmetric matrix [head, head]")
    if importance is not None and np.shape(importance) != (len(matrix),):
        raise BadInput(f"importance: got {np.shape(importance)}, expected ({len(matrix)},), one number per head")
    check_cut(len(matrix), threshold, clusters)
    np.fill_diagonal(matrix, 1.0)
    return (matrix + matrix.T) / 2


def _representatives(matrix: np.ndarray, label: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    medoids = np.zeros(len(label), dtype=bool)
    for group in _groups(label):
        medoids[group[np.argmax(matrix[np.ix_(group, group)].sum(1))]] = True
    return medoids if importance is None else _most_important(label, np.asarray(importance), medoids)


def _most_important(label: np.ndarray, importance: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """The most important head of every cluster; of one whose importance nobody knows, who stood for it otherwise."""
    chosen = otherwise.copy()
    for group in _groups(label):
        if not np.isnan(importance[group]).all():
            chosen[group] = False
            chosen[group[np.nanargmax(importance[group])]] = True
    return chosen


def _groups(label: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(label == one) for one in range(label.max(initial=-1) + 1)]
