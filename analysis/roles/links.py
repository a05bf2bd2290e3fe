"""Links: syntax and any relation a user annotates, as word-level choices of the most attended word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.annotations.annotated import Annotated, Span
from headwise.analysis.annotations.words import covering, word_units
from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.inference import cell_interval, sign_flip_p, split_half_reliability
from headwise.analysis.inference.cells import CELLS, cells_of
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.roles.dealing import scaled
from headwise.analysis.sites import Site

#: Word offsets that a head has to beat: the best of them on the same links.
FARTHEST = 8
OFFSETS = np.array([o for o in range(-FARTHEST, FARTHEST + 1) if o])
#: Further rules that need no understanding.
RULES = ("random", "uniform", "nearest", "same_word")
#: Kinds of link with fewer cases than this are not reported: too few to tell.
LEAST = 30
#: Halvings that reliability is the mean over.
_SPLITS = 20


@dataclass(frozen=True, eq=False)
class _Aligned:
    """One text's words and links: which pieces make a word, who is linked to whom, who may be chosen."""

    pieces: Tensor  # [token, word]
    ordinary: Tensor  # [word]
    alike: Tensor  # [word, word], written the same
    links: dict[str, tuple[Tensor, Tensor]]  # kind to words from, words to


class Links(Reducer):
    """Accuracy of every self-attention head at choosing the linked word, per kind of link and direction.

    A head is right if the word with the largest attention from one end, specials and the word itself left out,
    is the other end. Attention to a split word is the sum over its pieces, attention from it their mean (Clark
    et al. 2019); where an annotated span is a part of a word (an atom of a molecule), that word's tokens stand
    for themselves. The level to beat is the best of the best fixed word offset on the same links, at most 8 words
    away, and of four rules: `random` (any candidate), `uniform` (the one with most tokens, which an indifferent
    head prefers), `nearest` (in either direction) and `same_word` (a repetition). Links that truncation cut, that
    tokens cannot tell apart, or that the site cannot see are left out. If the annotation names candidates, only
    they can be chosen.

    Kinds are named `<label>:to-head` and `<label>:from-head` for dependencies, else `<relation>` and
    `<relation>:back`.

    Args:
        sites: the sites.
        relations: which relations to take; None for all but coreference, which has a role of its own.
    """

    needs = frozenset({"maps"})
    totals = ("right", "cases", "rule_right", "skipped")

    def __init__(self, sites: Mapping[str, Site], relations: frozenset[str] | None = None) -> None:
        self.sites, self.relations = dict(sites), relations
        self.skipped: Counter[str] = Counter()
        self._at = positions_of(sites)
        self._heads = sum(site.heads for site in sites.values())
        self._site_of = np.repeat(np.arange(len(sites)), [site.heads for site in sites.values()])
        self.right: dict[str, np.ndarray] = {}
        self.cases: dict[str, np.ndarray] = {}
        #: By site, since what a rule chooses is the same for all heads of one.
        self.rule_right: dict[str, np.ndarray] = {}
        self._batch: Batch | None = None
        self._aligned: dict[str, list[_Aligned | None]] = {}
        #: Of a word that a tile ends in, what its first pieces look at, by site and text.
        self._begun: dict[tuple[str, int], list[Tensor]] = {}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        cells = cells_of(batch.texts).tolist()
        if batch is not self._batch:
            self._batch, self._aligned, self._begun = batch, {}, {}
        for name, one in seen.items():
            stream = one.query_stream
            if one.site.kind != "self" or stream is None or not len(self._at[name]):
                continue
            if stream not in self._aligned:
                first = not self._aligned
                self._aligned[stream] = [self._align(text.links, batch.tokens[stream], i, first)
                                         for i, text in enumerate(batch.texts)]  # fmt: skip
            for i, mine in enumerate(self._aligned[stream]):
                if mine is not None:
                    self._add(name, one, i, mine, cells[i])

    def _align(self, gold: object, tokens: Tokens, i: int, count: bool) -> _Aligned | None:
        if not isinstance(gold, Annotated) or not self._takes(gold.relation):
            return None
        valid = tokens.valid[i] if tokens.second is None else tokens.valid[i] & ~tokens.second[i]
        offsets, words = tokens.offsets[i].cpu(), tokens.words[i].cpu()
        words = _uncut(words, offsets, [self._head(gold, span) for span in gold.spans()])
        units = word_units(words, valid.cpu())
        size = int(units.max()) + 1 if len(units) else 0
        if size < 1:
            return None
        pieces = torch.nn.functional.one_hot(units.clamp(min=0), size).float() * (units >= 0)[:, None]
        plain = torch.zeros(size, dtype=torch.bool)
        plain[units[(words >= 0) & valid.cpu()]] = True
        if gold.candidates is not None:
            chosen = {self._unit(self._head(gold, span), offsets, words, units) for span in gold.candidates}
            plain &= torch.tensor([u in chosen for u in range(size)])
        links: dict[str, list[tuple[int, int]]] = {}
        for k, (start, end) in enumerate(gold.links):
            if gold.judged is not None and start not in gold.judged:
                continue
            a, b = (self._unit(self._head(gold, span), offsets, words, units) for span in (start, end))
            if a is None or b is None or a == b:
                self.skipped["cut by truncation" if a is None or b is None else "one word for the tokenizer"] += count
                continue
            there, back = _names(gold, k)
            links.setdefault(there, []).append((a, b))
            links.setdefault(back, []).append((b, a))
        if not links:
            return None
        ends = {kind: tuple(torch.tensor(side) for side in zip(*pairs, strict=True)) for kind, pairs in links.items()}
        return _Aligned(pieces, plain, _alike(gold.text, offsets, units, size), ends)  # type: ignore[arg-type]

    def _takes(self, relation: str) -> bool:
        return relation in self.relations if self.relations is not None else relation != "coreference"

    @staticmethod
    def _head(gold: Annotated, span: Span) -> Span:
        """Words stand for themselves; a longer span is stood for by its head word, where one is known."""
        known = next((m for m in gold.mentions if m.span == span), None)
        return known.head if known is not None and known.head is not None else span

    @staticmethod
    def _unit(span: Span, offsets: Tensor, words: Tensor, units: Tensor) -> int | None:
        mask = covering(span, offsets, words)
        # A span of many words is stood for by its last.
        return None if mask is None else int(units[mask][-1])

    def _add(self, name: str, one: Seen, i: int, mine: _Aligned, cell: int) -> None:
        device = one.map.device
        words, (maps, even, open_to) = self._whole_words(name, one, i, mine.pieces.to(device))
        if not len(words):
            return
        number = torch.arange(len(words), device=device)
        open_to = (open_to > 0) & mine.ordinary.to(device)[None]
        open_to[number, words] = False
        credit = _credit(maps, open_to)
        rules = _rules(open_to, even, mine.alike.to(device)[words], words)
        row = torch.full((len(mine.ordinary),), -1, device=device)
        row[words] = number
        at, site = self._at[name], list(self.sites).index(name)
        for kind, (starts, ends) in mine.links.items():
            start, end = starts.to(device), ends.to(device)
            here = row[start] >= 0
            start, end = start[here], end[here]
            judged = open_to[row[start], end] & (open_to[row[start]].sum(-1) > 1)
            if not bool(judged.any()):
                continue
            start, end = start[judged], end[judged]
            self._room(kind)
            self.right[kind][cell, at] += credit[:, row[start], end].sum(-1).double().cpu().numpy()
            self.cases[kind][cell, at] += len(start)
            hit = (end - start)[:, None].cpu().numpy() == OFFSETS
            theirs = rules[:, row[start], end].sum(-1).double().cpu().numpy()
            self.rule_right[kind][cell, :, site] += np.concatenate([theirs, hit.sum(0)])

    def _whole_words(self, name: str, one: Seen, i: int, pieces: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The words whose last piece is among these rows, and what each looks at in the map, by chance, and may."""
        mean = pieces / pieces.sum(0).clamp(min=1)
        stop = one.start + one.map.shape[2]
        words = torch.nonzero(mean[one.start : stop].any(0)).flatten()
        rows = mean[one.start : stop, words].T
        found = [rows @ part @ pieces for part in (one.map[i], one.uniform[i], one.allowed[i].float())]
        for part, begun in zip(found, self._begun.pop((name, i), []), strict=False):
            part[..., :1, :] += begun
        if len(words) and bool(mean[stop:, words[-1]].any()):
            # Its other pieces come with the next tile.
            self._begun[name, i] = [part[..., -1:, :].clone() for part in found]
            words, found = words[:-1], [part[..., :-1, :] for part in found]
        return words, found

    def _room(self, kind: str) -> None:
        if kind not in self.right:
            self.right[kind], self.cases[kind] = np.zeros((2, CELLS, self._heads))
            self.rule_right[kind] = np.zeros((CELLS, len(RULES) + len(OFFSETS), len(self.sites)))

    def kinds(self) -> list[str]:
        """The kinds of link that have cases enough."""
        return [kind for kind in sorted(self.right) if self.cases[kind].sum(0).max() >= LEAST]

    def tests(self, null: Links | None = None) -> dict[str, dict[str, np.ndarray]]:
        """Per kind of link what `assign` takes, what each rule scores, and the best offset, `[head]` each.

        The p-value is the largest of those against each rule and the best offset (intersection-union test).

        Args:
            null: the same of a model that knows nothing, which is then a rule to beat as well.
        """
        return {kind: self._test(kind, null) for kind in self.kinds()}

    def _test(self, kind: str, null: Links | None) -> dict[str, np.ndarray]:
        right, cases, rules = self.right[kind], self.cases[kind], self.rule_right[kind]
        names = [*RULES, "best_offset"]
        filled = np.flatnonzero(cases.any(1))
        right, cases, rules = right[filled], cases[filled], rules[filled][:, :, self._site_of]
        total = cases.sum(0)
        counted = np.where(total > 0, total, np.nan)
        best = rules[:, len(RULES) :].sum(0).argmax(0)
        offset = np.take_along_axis(rules, len(RULES) + best[None, None], axis=1)
        to_beat = np.concatenate([rules[:, : len(RULES)], offset], axis=1)
        if null is not None:
            theirs = scaled(null._measured(kind, filled), cases)[:, None]
            names, to_beat, rules = [*names, "null"], *(np.concatenate([t, theirs], axis=1) for t in (to_beat, rules))
        sums = np.concatenate([right[:, None], cases[:, None], rules], axis=1)
        interval = cell_interval(sums, _excess, counts=cases > 0)
        differences = np.where(cases[:, None] > 0, right[:, None] - to_beat, np.nan)
        shares = dict(zip(names, to_beat.sum(0) / counted, strict=True))
        return shares | {
            "score": right.sum(0) / counted,
            "chance": to_beat.sum(0).max(0) / counted,
            "excess": interval.value,
            "low": interval.low,
            "high": interval.high,
            "p": np.max([sign_flip_p(differences[:, i]) for i in range(to_beat.shape[1])], axis=0),
            "n": total,
            "offset": OFFSETS[best].astype(np.float64),
        }

    def _measured(self, kind: str, cells: np.ndarray) -> Measured:
        nothing = np.zeros((CELLS, self._heads))
        right, cases = (table.get(kind, nothing)[cells] for table in (self.right, self.cases))
        return Measured(right, 0 * right, right, cases)

    def reliability(self, kind: str, seed: int = 0) -> float:
        """How well the heads' scores on one half of the cells predict those on the other (0 to 1)."""
        right, cases = self.right[kind], self.cases[kind]
        there = cases.any(0)
        return split_half_reliability(right[:, there], cases[:, there], seed=seed, splits=_SPLITS)

    def result(self) -> dict[str, np.ndarray]:
        """`roles/<kind>/<part>` of every kind with cases enough, `[head]`."""
        return {f"roles/{kind}/{part}": array for kind, parts in self.tests().items() for part, array in parts.items()}


def _uncut(words: Tensor, offsets: Tensor, spans: Sequence[Span]) -> Tensor:
    """Words of the tokens, where an annotated span cuts through a word a word of its own for each of its tokens."""
    cut: set[int] = set()
    for start, end in spans:
        inside = (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1]) & (words >= 0)
        touched = torch.isin(words, words[inside]) & (words >= 0)
        cut |= set(words[touched & ~inside].tolist())
    if not cut:
        return words
    alone = torch.tensor([word in cut for word in words.tolist()])
    return torch.where(alone, int(words.max()) + 1 + torch.arange(len(words)), words)


def _alike(text: str, offsets: Tensor, units: Tensor, size: int) -> Tensor:
    """Which words are written the same, whatever their case."""
    written = [""] * size
    for unit, (start, end) in zip(units.tolist(), offsets.tolist(), strict=True):
        if unit >= 0:
            written[unit] += text[start:end].casefold()
    number = {word: i for i, word in enumerate(dict.fromkeys(written))}
    code = torch.tensor([number[word] if word else -1 - i for i, word in enumerate(written)])
    return code[:, None] == code[None]


def _credit(weights: Tensor, open_to: Tensor) -> Tensor:
    """How much of each row's choice goes to each word: all to the largest weight, shared where several are equal."""
    chosen = weights.masked_fill(~open_to, -1.0)
    # Equal weights share the credit: a uniform head must not win by the order of its words.
    tied = (chosen >= chosen.amax(-1, keepdim=True) * (1 - 1e-6)) & open_to
    return tied / tied.sum(-1, keepdim=True).clamp(min=1)


def _rules(open_to: Tensor, even: Tensor, alike: Tensor, words: Tensor) -> Tensor:
    """How much of each row's choice every rule gives to each word, `[rule, row, word]`; a row is one of `words`."""
    place = torch.arange(open_to.shape[1], device=open_to.device)
    near = 1 / (place[None] - words[:, None]).abs().clamp(min=1)
    again = open_to & alike
    rules = [_credit(torch.ones_like(even), open_to), _credit(even, open_to), _credit(near, open_to)]
    # With no repetition the rule has no answer.
    return torch.stack([*rules, again / again.sum(-1, keepdim=True).clamp(min=1)])


def _excess(totals: np.ndarray) -> np.ndarray:
    """Accuracy minus that of the best rule, of resampled totals `[resample, right + cases + rules, head]`."""
    cases = np.where(totals[:, 1] > 0, totals[:, 1], np.nan)
    return np.asarray((totals[:, 0] - totals[:, 2:].max(1)) / cases)


def _names(gold: Annotated, k: int) -> tuple[str, str]:
    """How a link and its reverse are called."""
    if gold.labels:
        label = gold.labels[k].replace("/", "|")
        return f"{label}:to-head", f"{label}:from-head"
    relation = gold.relation.replace("/", "|")
    return relation, f"{relation}:back"
