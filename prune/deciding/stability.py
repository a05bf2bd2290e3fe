"""Stability: would other texts of the same kind have ranked the heads the same way, and have chosen the same?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.analysis.sites import Site
from headwise.prune.importance.resampled import GROUPS, Resampled, halves
from headwise.prune.importance.scores import Scores
from headwise.prune.selection.costs import AdditiveCosts, Costs

#: How often the texts are drawn again.
RESAMPLES = 200


def stability(
    kind: str, values: Mapping[str, np.ndarray], resampled: Resampled | None, *, seed: int, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """How alike the ranks of heads are on resampled texts: Kendall's tau with the ranks that decided.

    Texts are drawn with replacement, in up to 64 parts by content, and scored anew from sums that the score's own
    pass kept: no text is read again. What takes a training was trained again on halves of the texts, if asked.
    1: always the same order; 0: no more alike than two random orders (Kendall, 1938; tau-b, which allows for ties).

    Args:
        kind: name of the score.
        values: score of every head by site; NaN for heads that are gone.
        resampled: how the score is had on other texts; None if it does not say.
        seed: of the draws.
        resamples: how often.

    Returns:
        `schema`, `score`, `tau` (median; null where it is not known, and `how` says why), `low` and `high` (the
        range that holds 95 % of the draws), `resamples`, and `how`, what was drawn again, in words.

    >>> always = Resampled("a made-up score", np.ones(8), lambda weights: {"0": np.arange(3.0)})
    >>> stability("made-up", {"0": np.arange(3.0)}, always, seed=0)["tau"]
    1.0
    """
    told: dict[str, Any] = {"schema": 1, "score": kind, "tau": None, "low": None, "high": None, "resamples": 0}
    if resampled is None:
        return {**told, "how": "this score does not say how it depends on single texts"}
    if resampled.without_texts:
        return {**told, "tau": 1.0, "low": 1.0, "high": 1.0, "how": resampled.how}
    if resampled.trained:
        taus = [_tau(_flat(values, values), _flat(other, values)) for other in resampled.trained]
        return _spread(told, taus, resampled.how)
    if resampled.anew is None or resampled.texts is None:
        return {**told, "how": resampled.how}
    there = np.flatnonzero(resampled.texts > 0)
    if len(there) < 2:
        return {**told, "how": "too few texts to draw from"}
    full = _flat(resampled.instead or values, values)
    generator, found = np.random.default_rng(seed), []
    for _ in range(resamples):
        weights = np.zeros(len(resampled.texts))
        weights[there] = generator.multinomial(len(there), np.full(len(there), 1 / len(there)))
        found.append(_tau(full, _flat(resampled.anew(weights), values)))
    return _spread(told, found, resampled.how)


def _spread(told: Mapping[str, Any], found: Sequence[float], how: str) -> dict[str, Any]:
    """Median and range of the taus, beside what is told anyway."""
    known = np.array([tau for tau in found if np.isfinite(tau)])
    if not len(known):
        return {**told, "how": "all heads score the same"}
    low, middle, high = np.quantile(known, [0.025, 0.5, 0.975])
    return {
        **told, "tau": float(middle), "low": float(low), "high": float(high), "resamples": len(known), "how": how,
    }  # fmt: skip


def chosen_again(
    scores: Scores, sites: Mapping[str, Site], choose: Callable[[Costs], Mapping[str, Sequence[int]]], free: int
) -> dict[str, Any]:
    """What share of the heads that go would go again, had only half of the texts decided.

    Ranks alone do not say that: the order among heads that all go, or all stay, does not matter, and costs after repair
    depend on what else goes. So the same selection is made anew on every half of the texts that is made of two of four
    groups by content (`halves`), from sums that the score's own pass kept.

    Args:
        scores: of the heads.
        sites: the model's.
        choose: from costs to what the plan's own budget, scope and keep-rules remove.
        free: how many heads could go: the share that chance alone picks again.

    Returns:
        `times` (0 where it is not known), `removed` heads, the mean `share` of them that goes again with its `least`
        and `most`, its `chance` level, how many go `always`, how often each head goes, and `how`, or why not.

    >>> values = {"0": np.array([1.0, 2.0, 3.0, 4.0])}
    >>> site = Site("0", "attn", "attn.o", 4, 4, 8, kept=(0, 1, 2, 3))
    >>> scores = Scores("made-up", values, resampled=Resampled("a made-up score", np.ones(64), lambda weights: values))
    >>> found = chosen_again(scores, {"0": site}, lambda costs: {"0": [0, 1]}, 4)
    >>> found["times"], found["share"], found["chance"], found["always"]
    (6, 1.0, 0.5, 2)
    """
    told: dict[str, Any] = {
        "times": 0, "removed": None, "share": None, "least": None, "most": None, "chance": None, "always": None,
        "heads": {},
    }  # fmt: skip
    way = scores.resampled
    why = _not_again(way)
    if why or way is None:
        return {**told, "how": why}
    base = scores.costs if way.instead is None or way.costs is not None else AdditiveCosts(way.instead)
    gone = _newly_gone(sites, choose(base))
    if not gone:
        return {**told, "how": "no head goes"}
    often: Counter[tuple[str, int]] = Counter()
    shares = []
    others = [AdditiveCosts(values) for values in way.trained] or (_costs_on(way, sites, half) for half in halves())
    for costs in others:
        found = _newly_gone(sites, choose(costs))
        often.update(found)
        shares.append(len(gone & found) / len(gone))
    heads: dict[str, dict[str, int]] = {}
    for name, head in sorted(often):
        heads.setdefault(name, {})[str(head)] = often[name, head]
    return {
        "times": len(shares), "removed": len(gone), "share": float(np.mean(shares)), "least": min(shares),
        "most": max(shares), "chance": len(gone) / free if free else None,
        "always": sum(often[head] == len(shares) for head in gone), "heads": heads,
        "how": "by greedy removal on halves of the texts, each two of four groups",
    }  # fmt: skip


def even(values: Mapping[str, np.ndarray], remove: Mapping[str, Sequence[int]]) -> int:
    """How many heads that stay score exactly as one that goes: between these the score decides nothing.

    >>> even({"0": np.array([0.0, 0.0, 1.0, np.nan])}, {"0": [0, 3]})
    1
    """
    gone = {name: np.isin(np.arange(len(found)), list(remove.get(name, ()))) for name, found in values.items()}
    one, went = _flat(values, values), _flat(gone, values).astype(bool)
    return int(np.isin(one[~went], one[went]).sum())


def _not_again(way: Resampled | None) -> str:
    """Why heads cannot be chosen on half of the texts; empty if they can."""
    if way is None:
        return "this score does not say how it depends on single texts"
    if way.unchosen:
        return way.unchosen
    if (way.anew is None and not way.trained) or way.texts is None:
        return way.how
    if any(not way.texts[first::GROUPS].any() for first in range(GROUPS)):
        return "too few texts to choose on half of them"
    return ""


def _costs_on(way: Resampled, sites: Mapping[str, Site], weights: np.ndarray) -> Costs:
    if way.costs is not None:
        return way.costs(weights)
    drawn = way.anew(weights) if way.anew is not None else {}
    # What is not known on so few texts is worth nothing there.
    filled = {
        name: np.where(np.isin(np.arange(site.heads), site.kept), np.nan_to_num(drawn[name]), np.nan)
        for name, site in sites.items()
    }
    return AdditiveCosts(filled)


def _newly_gone(sites: Mapping[str, Site], remove: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
    """The heads that go now; not those that an earlier cut took."""
    return {(name, head) for name, heads in remove.items() for head in heads if head in sites[name].kept}


def _flat(values: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]) -> np.ndarray:
    """The heads that exist, in one row."""
    return np.concatenate([np.asarray(values[name])[np.isfinite(there[name])] for name in there])


def _tau(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import kendalltau

    if len(one) < 2:
        return float("nan")  # one head has no order
    return float(kendalltau(one, np.nan_to_num(other)).statistic)
