"""Redundancy: of each cluster of heads that do the same, keep the one that matters most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.analysis.errors import BadInput
from headwise.prune.importance.calibration import LOSSES, Calibration, Loss
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.known import drawn_again
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores

#: Texts by part, [part], and from how often each part is drawn to how much each head matters, [head].
_Anew = tuple[np.ndarray | None, Callable[[np.ndarray], np.ndarray]]


class Redundancy(BaseModel):
    """How far a head is from the nearest cluster whose best member matters more.

    Heads are clustered bottom-up by similarity. Whenever two clusters join, the less important of their two
    best heads has a stand-in and could go; its score is the distance (1 - similarity) at which that happens.
    So for any number of removed heads the plan keeps, of each cluster of that many clusters, exactly the one
    that matters most, and no threshold has to be chosen. The head that matters most of all scores highest.

    >>> Redundancy(linkage="complete").measure
    'pearson'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["redundancy"] = "redundancy"
    measure: str = Field(default="pearson", description="the evidence's similarity between heads")
    linkage: Literal["average", "complete"] = Field(
        default="average", description="a cluster is as far from another as its heads on average, or at most"
    )
    matters: Literal["gradient", "norm"] = Field(
        default="gradient", description="who stays: the head the loss leans on, or the one with the largest context"
    )
    loss: Loss = Field(default="labels", description=f"of `matters: gradient`; {LOSSES}")

    @model_validator(mode="after")
    def _loss_of_gradient(self) -> Redundancy:
        if self.loss != "labels" and self.matters != "gradient":
            raise ValueError(f"loss belongs to matters: gradient; matters: {self.matters} looks at none")
        return self

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score` beyond the analysis."""
        if self.matters == "gradient":
            Gradient(loss=self.loss).foretell(passes)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: distance to its stand-in, with a note that names it.

        Raises:
            BadInput: the evidence lacks the similarity or the norms, or belongs to another model.
        """
        place, similarity = self._similarity(calibration)
        heads = [(name, head) for name, site in calibration.sites.items() for head in site.kept]
        rows = [place[head] for head in heads]
        similarity = similarity[np.ix_(rows, rows)]
        importance, way = self._importance(calibration, heads, rows)
        distances, rivals = clusters_lost(similarity, importance, self.linkage)
        values = {name: np.full(site.heads, np.nan) for name, site in calibration.sites.items()}
        notes: dict[str, dict[int, str]] = {name: {} for name in values}
        for index, (name, head) in enumerate(heads):
            values[name][head] = distances[index]
            if rivals[index] != index:
                rival_site, rival_head = heads[rivals[index]]
                r = similarity[index, rivals[index]]
                notes[name][head] = f"nearest head that matters more: {rival_site}.{rival_head} (r = {r:.2f})"
        return Scores(self.kind, values, notes=notes, resampled=self._resampled(heads, similarity, values, way))

    def _resampled(
        self, heads: list[tuple[str, int]], similarity: np.ndarray, values: dict[str, np.ndarray], way: _Anew | None
    ) -> Resampled:
        """Who matters most, on texts drawn again; who is alike, as measured."""
        if way is None:
            return Resampled("no sums by part of the texts are kept of what matters; analyse again")
        texts, importance = way

        # Other texts ask who matters anew, not who is alike: the tree is the same for all of them.
        tree = tree_of(similarity, self.linkage)

        def anew(weights: np.ndarray) -> dict[str, np.ndarray]:
            distances = distances_lost(tree, importance(weights))
            found = {name: np.full_like(value, np.nan) for name, value in values.items()}
            for (name, head), distance in zip(heads, distances, strict=True):
                found[name][head] = distance
            return found

        return Resampled("who matters is asked of texts drawn again; similarity stays as measured", texts, anew)

    def _similarity(self, calibration: Calibration) -> tuple[dict[tuple[str, int], int], np.ndarray]:
        arrays = getattr(calibration.evidence, "arrays", {})
        found = arrays.get(f"similarity/{self.measure}")
        if found is None:
            names = [name.split("/")[1] for name in arrays if name.startswith("similarity/")]
            known = sorted(name for name in names if not name.endswith("_chance"))
            raise BadInput(
                f"score redundancy: the evidence lacks similarity {self.measure!r}; it has {', '.join(known) or 'none'}"
            )
        place = {(name, int(head)): index for index, (name, head) in enumerate(calibration.evidence.heads)}
        missing = [f"{n}.{h}" for n, site in calibration.sites.items() for h in site.kept if (n, h) not in place]
        if missing:
            raise BadInput(f"score redundancy: the evidence is of another model: it has no head {missing[0]}")
        return place, np.nan_to_num(np.asarray(found, dtype=np.float64))

    def _importance(
        self, calibration: Calibration, heads: list[tuple[str, int]], rows: list[int]
    ) -> tuple[np.ndarray, _Anew | None]:
        """What decides who stays, and how that depends on the texts."""
        if self.matters == "gradient":
            gradient = Gradient(loss=self.loss).score(calibration)
            way = gradient.resampled
            if way is None or way.anew is None:
                return _in_row(gradient, heads), None
            anew = way.anew
            return _in_row(gradient, heads), (way.texts, lambda weights: _in_row(anew(weights), heads))
        norms: Any = calibration.evidence.arrays.get("statistics/context_norm")
        if norms is None:
            raise BadInput("score redundancy: the evidence has no statistics/context_norm; use matters: gradient")
        known = drawn_again(calibration.evidence, "context_norm")
        again = None if known is None else (known[0], lambda weights: known[1](weights)[rows])
        return np.nan_to_num(np.asarray(norms, dtype=np.float64)[rows]), again


def _in_row(values: Mapping[str, np.ndarray], heads: list[tuple[str, int]]) -> np.ndarray:
    return np.array([values[name][head] for name, head in heads])


def clusters_lost(
    similarity: np.ndarray, importance: np.ndarray, linkage: str = "average"
) -> tuple[np.ndarray, np.ndarray]:
    """At which distance each head loses its cluster to one that matters more, and which of those is most like it.

    Args:
        similarity: [head, head], 1 = the same.
        importance: [head]; the larger stays, of equals the first.
        linkage: `average` or `complete`.

    Returns:
        distances [head] (the overall winner: one more than the largest) and, per head, the index of the most
        similar head in the cluster it lost to that matters more (its own for the winner).

    >>> similar = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> distances, rivals = clusters_lost(similar, np.array([1.0, 2.0, 3.0]))
    >>> distances.round(2), rivals
    (array([0.1 , 0.85, 1.85]), array([1, 2, 2]))
    """
    count = len(importance)
    tree = tree_of(similarity, linkage)
    rivals, members = np.arange(count), {index: [index] for index in range(count)}
    for step, (winner, loser, lost, _) in enumerate(_duels(tree, importance)):
        stronger = [head for head in members[winner] if importance[head] >= importance[lost]]
        rivals[lost] = max(stronger, key=lambda head: similarity[lost, head])
        members[count + step] = members.pop(winner) + members.pop(loser)
    return distances_lost(tree, importance), rivals


def tree_of(similarity: np.ndarray, linkage: str = "average") -> np.ndarray:
    """How heads join to clusters, the most alike first: a row a merger, as scipy has it.

    >>> tree_of(np.array([[1.0, 0.25], [0.25, 1.0]])).tolist()
    [[0.0, 1.0, 0.75, 2.0]]
    """
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import squareform

    if len(similarity) < 2:
        return np.zeros((0, 4))
    apart = np.clip(1 - (similarity + similarity.T) / 2, 0, None)
    np.fill_diagonal(apart, 0.0)
    return np.asarray(merge(squareform(apart, checks=False), method=linkage))


def distances_lost(tree: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """At which distance each head loses its cluster to one that matters more; the overall winner one more than that.

    >>> distances_lost(tree_of(np.array([[1.0, 0.25], [0.25, 1.0]])), np.array([2.0, 1.0]))
    array([1.75, 0.75])
    """
    distances = np.zeros(len(importance))
    for _, _, lost, height in _duels(tree, importance):
        distances[lost] = height
    if len(distances):
        distances[np.argmax(importance)] = 1 + distances.max()
    return distances


def _duels(tree: np.ndarray, importance: np.ndarray) -> Iterator[tuple[int, int, int, float]]:
    """Of every merger the side that wins, the side that loses, the head that loses it, and at which distance."""
    best = list(range(len(importance)))
    for left, right, height, _ in tree.tolist():
        winner, loser = sorted((int(left), int(right)), key=lambda side: (-importance[best[side]], best[side]))
        yield winner, loser, best[loser], height
        best.append(best[winner])
