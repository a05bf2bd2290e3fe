"""Resampled: what a score would have been on other texts, from sums kept apart by parts of the texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headwise.prune.selection.costs import Costs

#: Texts are spread over this many parts by their content; a part is drawn again as one.
PARTS = 64
#: Every so many parts are a group: of sums that are too large to be kept by part.
GROUPS = 4
#: Bytes that sums by group may take in all; of wider models there are none.
MOST = 512 * 2**20

#: From how often each part was drawn [part] to the score of every head, by site.
Anew = Callable[[np.ndarray], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Resampled:
    """How a score depends on the texts.

    Attributes:
        how: in words: what is drawn again and what is held fixed, or why nothing is.
        texts: how many texts (or how much else) each part holds, [part]; None where no texts are looked at.
        anew: the score on resampled texts; None where it cannot be had from sums. Without `texts` the score
            has nothing to do with them, and always ranks the same.
        instead: what `anew` gives on all texts once, where that is a part of the score and not the score itself.
        costs: what removals cost on one of the `halves` of the texts, where scores do not simply add up.
        trained: the score had anew on as many halves of the texts (`apart`), where it takes more than sums.
        unchosen: why heads cannot be chosen again on other texts, though `anew` says how scores depend on them.
    """

    how: str
    texts: np.ndarray | None = None
    anew: Anew | None = None
    instead: Mapping[str, np.ndarray] | None = None
    costs: Callable[[np.ndarray], Costs] | None = None
    trained: Sequence[Mapping[str, np.ndarray]] = ()
    unchosen: str = ""

    @property
    def without_texts(self) -> bool:
        """Whether the score looks at no text at all.

        >>> Resampled("weights alone", None, lambda _: {}).without_texts
        True
        """
        return self.texts is None and self.anew is not None


def halves() -> list[np.ndarray]:
    """Every half of the texts that is made of whole groups, as how often each part counts: 0 or 2, [part].

    A score on half of the texts strays from that on all as far as that on all strays from what endless texts would
    say (balanced half-samples: McCarthy, 1969).

    >>> [half[:4].tolist() for half in halves()][:2], len(halves())
    ([[2.0, 2.0, 0.0, 0.0], [2.0, 0.0, 2.0, 0.0]], 6)
    """
    group = np.arange(PARTS) % GROUPS
    return [2.0 * np.isin(group, pair) for pair in combinations(range(GROUPS), GROUPS // 2)]


def apart(times: int) -> list[np.ndarray]:
    """So many of the `halves`, as far apart as they can be: a half is followed by the other half.

    >>> first, second = apart(2)
    >>> (first + second).tolist() == [2.0] * PARTS
    True
    """
    found = halves()
    pairs = [half for index in range(len(found) // 2) for half in (found[index], found[-1 - index])]
    return pairs[:times]


def untouched(values: Mapping[str, np.ndarray], how: str) -> Resampled:
    """Of a score that looks at no text.

    >>> untouched({"0": np.ones(2)}, "the weights alone").anew(np.ones(PARTS))
    {'0': array([1., 1.])}
    """
    return Resampled(how, None, lambda _: values)


def weighted(sums: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Sums over the parts, each as often as it was drawn (once by default).

    Args:
        sums: [part, ...].
        weights: [part].

    >>> weighted(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([2.0, 0.0]))
    array([2., 4.])
    """
    return np.asarray(sums.sum(0) if weights is None else np.tensordot(weights, sums, axes=1))
