"""Coreference: attention from an anaphor to its antecedent (Clark et al. 2019, antecedent selection).

For every anaphor, the earlier mentions' head words compete: the head is right if the one with the largest
word-level attention from the anaphor's head word is an antecedent. Special tokens and the anaphor itself take
no part, nor does what the site cannot see. Ties share the credit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.analysis.annotations.annotated import KINDS
from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.inference import cell_interval, sign_flip_p, split_half_reliability
from headwise.analysis.inference.cells import cells_of
from headwise.analysis.roles.anaphors import Anaphors, anaphors_of
from headwise.analysis.sites import Site

#: Rules that need no understanding; a coreference head has to beat every one of them.
BASELINES = ("random", "uniform", "nearest", "first", "same_word")
#: What is summed per cell and head: anaphors, right ones, right ones of each rule, mass on the antecedent
#: among the candidates, and the same for an indifferent head.
_SUMS = ("n", "score", *BASELINES, "mass", "even")
#: Templates are spread over this many cells, so that even a template a text cannot fill the memory.
_TEMPLATE_CELLS = 1024
#: Attentions closer than this share are equal: a uniform head must not win by rounding.
_TIE = 1e-6


def antecedent_scores(
    maps: Float[Tensor, "batch head query key"],
    allowed: Bool[Tensor, "batch query key"],
    items: Anaphors,
) -> Float[Tensor, "item sums head"]:
    """What every anaphor adds to the sums of every head; zeros where it cannot be judged.

    In the order n, score, the baselines random, uniform, nearest, first, same_word, then mass and even. An
    anaphor is not judged where the site sees no antecedent, or nothing else, or the row is broken (not
    finite, or all zero).

    Args:
        maps: attention probabilities of one site.
        allowed: which keys each row could attend to.
        items: the batch's anaphors.

    >>> one = torch.ones(1, 1, dtype=torch.long)
    >>> targets = torch.tensor([[[True, False, False], [False, True, False]]])
    >>> gold = torch.tensor([[True, False]])
    >>> items = Anaphors(0 * one[0], 2 * one, torch.ones(1, 1), targets, gold, gold & False, 0 * one[0])
    >>> maps = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.7, 0.2, 0.1]]]])
    >>> antecedent_scores(maps, (maps > 0)[:, 0], items)[0, :3, 0].tolist()
    [1.0, 1.0, 0.5]
    """
    return _judged(items, *_looked(maps, allowed, items))


def _looked(
    maps: Float[Tensor, "batch head row key"], allowed: Bool[Tensor, "batch row key"], items: Anaphors, start: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of every anaphor to its candidates, its whole attention, and an indifferent head's to the candidates.

    Summed over those of its pieces that are among the rows, of which the first has the number `start`.
    """
    here = (items.pieces >= start) & (items.pieces < start + maps.shape[2])
    share = (items.share * here).to(maps.dtype)
    pieces = (items.pieces - start).clamp(0, maps.shape[2] - 1)
    # Not a number times a share of 0 is none either: what is not among the rows must not be read.
    rows = maps[items.row[:, None], :, pieces]
    rows = rows if bool(here.all()) else rows.masked_fill(~here[:, :, None, None], 0.0)
    targets = items.targets.to(maps.dtype)
    attention = torch.einsum("iphk,ip,imk->ihm", rows, share, targets)
    sound = torch.einsum("iphk,ip->ih", rows, share)
    seen = allowed[items.row[:, None], pieces].to(maps.dtype)
    uniform = torch.einsum("ipk,ip,imk->im", seen / seen.sum(-1, keepdim=True).clamp(min=1), share, targets)
    return attention, sound, uniform


def _judged(items: Anaphors, attention: Tensor, sound: Tensor, uniform: Tensor) -> Float[Tensor, "item sums head"]:
    """What every anaphor adds to the sums of every head, from what it and an indifferent head look at."""
    open_to = uniform > 0
    gold = items.gold & open_to
    judged = (gold.any(-1) & (open_to & ~gold).any(-1))[:, None]
    judged = judged & torch.isfinite(sound) & (sound > 0) & torch.isfinite(attention).all(-1)
    number = torch.arange(gold.shape[1], device=uniform.device).to(uniform.dtype)
    rules = {
        "random": torch.zeros_like(uniform),
        "uniform": uniform,
        "nearest": number.expand_as(uniform),
        "first": -number.expand_as(uniform),
    }
    # The latest repetition of the anaphor's own word; with no repetition the rule has no answer.
    again = items.same & open_to
    repeats = _credit(torch.where(again, number, -1.0), gold, open_to) * again.any(-1)
    even = _share_of(uniform, gold, open_to)
    per_item = [*(_credit(value, gold, open_to) for value in rules.values()), repeats]
    ours, theirs = gold[:, None], open_to[:, None]
    mass = _share_of(attention.nan_to_num(), ours, theirs)
    values = [
        torch.ones_like(sound),
        _credit(attention.nan_to_num(), ours, theirs),
        *(value[:, None].expand_as(sound) for value in per_item),
        torch.where(mass.isnan(), even[:, None], mass),
        even[:, None].expand_as(sound),
    ]
    return torch.where(judged[:, None], torch.stack(values, dim=1), 0.0)


def _credit(preference: Tensor, gold: Tensor, open_to: Tensor) -> Tensor:
    """Whether the most preferred candidate is right; the share of right ones where several are equal."""
    best = preference.masked_fill(~open_to, -torch.inf).amax(-1, keepdim=True)
    tied = open_to & (preference >= best - _TIE * best.abs())
    return (tied & gold).sum(-1) / tied.sum(-1).clamp(min=1)


def _share_of(weight: Tensor, gold: Tensor, open_to: Tensor) -> Tensor:
    """Right candidates' part of the weight on all candidates; NaN where they have none."""
    total = (weight * open_to).sum(-1)
    return (weight * gold).sum(-1) / total.where(total > 0, torch.nan)


class Antecedents(Reducer):
    """Antecedent-selection accuracy of every self-attention head, with its null, interval and baselines.

    Gold comes with the texts: `text.links` is an `Annotated` of relation `coreference`. Sums are kept per
    cell: a template where the annotation names one, else a text's content hash. Arrays, all `[head]` under
    `roles/coreference/`, NaN where nothing was judged:

    | array | meaning |
    |---|---|
    | `score` | share of anaphors whose most attended candidate is an antecedent |
    | `random`, `uniform`, `nearest`, `first`, `same_word` | what simple rules score on the same anaphors: any candidate, the one that an indifferent head prefers (most tokens), the last, the first, the last that repeats the word |
    | `null` | what a model that knows nothing scores, where one is given |
    | `chance` | the best of these rules, `null` among them |
    | `excess`, `low`, `high` | score − chance, with the interval from resampled cells |
    | `p` | one-sided; null: the head is no better than at least one of the rules. The largest of the rules' sign-flip p-values over cells (intersection-union test) |
    | `mass_lift` | attention on the antecedents as a share of that on all candidates, over the same of an indifferent head; 1 = none |
    | `pronoun`, `proper`, `nominal` | score by the anaphor's kind |
    | `n` | anaphors judged |
    | `held_out_score`, `held_out_chance`, `held_out_n` | the same on the templates that were set aside, if any |
    """  # noqa: E501

    needs = frozenset({"maps"})
    totals = ("_cells", "_sums", "_kinds", "skipped")

    def __init__(self, sites: Mapping[str, Site], held_out: Collection[str] = ()) -> None:
        """Start with nothing seen.

        Args:
            sites: the sites of the model.
            held_out: names of templates that count towards `held_out_…` alone.
        """
        self.sites = dict(sites)
        self.held_out = frozenset(held_out)
        self.skipped: Counter[str] = Counter()
        self._at = positions_of(sites)
        self._heads = sum(site.heads for site in sites.values())
        self._cells: dict[tuple[bool, str, int], int] = {}
        self._sums = torch.zeros(0, len(_SUMS), self._heads, dtype=torch.float64)
        self._kinds = torch.zeros(len(KINDS), 2, self._heads, dtype=torch.float64)
        self._batch: Batch | None = None
        self._aligned: dict[str, Anaphors | None] = {}
        #: By site, anaphors that a tile ends in, and what their first pieces look at.
        self._begun: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        if batch is not self._batch:
            self._batch, self._aligned, self._begun = batch, {}, {}
        for name, one in seen.items():
            stream = one.query_stream
            if one.site.kind != "self" or stream is None or stream != one.key_stream:
                continue
            if stream not in self._aligned:
                self._aligned[stream], left = anaphors_of(batch, batch.tokens[stream])
                # Streams of one batch hold the same texts: what is left out is counted for the first.
                self.skipped.update(left if len(self._aligned) == 1 else {})
            items = self._aligned[stream]
            if items is not None and len(self._at[name]):
                self._add(batch, name, one, items)

    def _add(self, batch: Batch, name: str, one: Seen, every: Anaphors) -> None:
        every = every.to(one.map.device)
        stop = one.start + one.map.shape[2]
        begun, theirs = self._begun.pop(name, (torch.zeros(0, dtype=torch.long), []))
        touched = ((every.pieces >= one.start) & (every.pieces < stop)).any(1)
        touched[begun] = True
        here = torch.nonzero(touched).flatten()
        if not len(here):
            return
        parts = list(_looked(one.map, one.allowed, every.some(here), one.start))
        for part, other in zip(parts, theirs, strict=False):
            part.index_add_(0, torch.searchsorted(here, begun), other)
        whole_here = every.pieces[here].amax(1) < stop
        if not bool(whole_here.all()):
            # Their other pieces come with the next tile.
            self._begun[name] = here[~whole_here], [part[~whole_here] for part in parts]
            here, parts = here[whole_here], [part[whole_here] for part in parts]
        items = every.some(here)
        found = _judged(items, *parts).double().cpu()
        items = items.to(torch.device("cpu"))
        at = torch.from_numpy(self._at[name])
        whole = torch.zeros(len(found), len(_SUMS), self._heads, dtype=torch.float64)
        whole[:, :, at] = found
        cells = self._cells_of(batch)[items.row]
        self._sums.index_add_(0, cells, whole)
        self._kinds.index_add_(0, items.kind, whole[:, :2])

    def absorb(self, told: Mapping[str, Any]) -> None:
        """Add another process's sums, whose cells are numbered in another order."""
        for key, row in told["_cells"].items():
            place = self._cells.setdefault(key, len(self._cells))
            self._make_room()
            self._sums[place] += told["_sums"][row]
        self._kinds += told["_kinds"]
        self.skipped.update(told["skipped"])

    def _make_room(self) -> None:
        if len(self._cells) > len(self._sums):
            room = torch.zeros(2 * len(self._cells), *self._sums.shape[1:], dtype=torch.float64)
            room[: len(self._sums)] = self._sums
            self._sums = room

    def _cells_of(self, batch: Batch) -> Int[Tensor, " batch"]:
        """Where each text's sums go; new cells are made room for."""
        rows = []
        for text, cell in zip(batch.texts, cells_of(batch.texts).tolist(), strict=True):
            template = getattr(text.links, "template", None)
            if template is None:
                key = (False, "text", cell)
            else:
                digest = hashlib.sha256(template.encode()).digest()
                number = int.from_bytes(digest[:8], "big") % _TEMPLATE_CELLS
                key = (template in self.held_out, "template", number)
            rows.append(self._cells.setdefault(key, len(self._cells)))
        self._make_room()
        return torch.tensor(rows)

    def by_cell(self, held_out: bool = False) -> Float[Any, "cell sums head"]:
        """The sums of every cell, in an order that does not depend on that of the texts."""
        return self._sums.numpy()[[self._cells[key] for key in self._judged(held_out)]]

    def _judged(self, held_out: bool = False) -> list[tuple[bool, str, int]]:
        """The cells where some head was judged, in order."""
        keys = [key for key in sorted(self._cells) if key[0] is held_out]
        return [key for key in keys if self._sums[self._cells[key], 0].any()]

    def reliability(self, seed: int = 0) -> float:
        """How well the heads' scores on one half of the cells predict those on the other (0 to 1)."""
        sums = self.by_cell()
        judged = sums[:, 0].any(axis=0) if len(sums) else np.zeros(self._heads, bool)
        return float(split_half_reliability(sums[:, 1][:, judged], sums[:, 0][:, judged], seed=seed))

    def _scores_in(self, keys: Sequence[tuple[bool, str, int]]) -> Float[Any, "cell head"]:
        """Share of right anaphors in each of the cells; 0 where nothing was judged."""
        table = np.zeros((len(keys), 2, self._heads))
        for i, key in enumerate(keys):
            if key in self._cells:
                table[i] = self._sums[self._cells[key], :2].numpy()
        return np.asarray(table[:, 1] / np.where(table[:, 0] > 0, table[:, 0], 1.0))

    def result(self, null: Antecedents | None = None) -> dict[str, np.ndarray]:
        """Named arrays over all heads; see the class.

        Args:
            null: the same of a model that knows nothing: its score, `null`, is then a rule to beat as well.
        """
        sums = self.by_cell()
        rules = list(BASELINES)
        if null is not None:
            theirs = null._scores_in(self._judged()) * sums[:, 0]
            sums, rules = np.concatenate([sums, theirs[:, None]], axis=1), [*rules, "null"]
        names = (*_SUMS, "null")
        total = sums.sum(axis=0)
        mean = _means(total)
        found = {name: mean[names.index(name)] for name in ("score", *rules)}
        found["chance"] = np.max([found[name] for name in rules], axis=0)
        interval = cell_interval(sums, partial(_excess, [names.index(name) for name in rules]), counts=sums[:, 0] > 0)
        found |= {"excess": interval.value, "low": interval.low, "high": interval.high}
        differences = np.stack([sums[:, 1] - sums[:, names.index(name)] for name in rules])
        differences = np.where(sums[:, 0] > 0, differences, np.nan)
        found["p"] = np.max([sign_flip_p(difference) for difference in differences], axis=0)
        found["mass_lift"] = mean[_SUMS.index("mass")] / mean[_SUMS.index("even")]
        found |= dict(zip(KINDS, (_means(kind[:2])[1] for kind in self._kinds.numpy()), strict=True))
        found["n"] = total[0]
        if self.held_out:
            held = self.by_cell(held_out=True).sum(axis=0)
            rates = _means(held)
            best = np.max([rates[_SUMS.index(name)] for name in BASELINES], axis=0)
            found |= {"held_out_score": rates[1], "held_out_chance": best, "held_out_n": held[0]}
        return {f"roles/coreference/{name}": np.asarray(value) for name, value in found.items()}


def _means(total: np.ndarray) -> np.ndarray:
    """Every sum over the number of anaphors."""
    return np.asarray(total / np.where(total[0] > 0, total[0], np.nan))


def _excess(rules: Sequence[int], totals: np.ndarray) -> np.ndarray:
    """Score minus the best rule, of resampled totals `[resample, sums, head]`."""
    best = totals[:, rules].max(1)
    return np.asarray((totals[:, 1] - best) / np.where(totals[:, 0] > 0, totals[:, 0], np.nan))
