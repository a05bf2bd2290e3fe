"""Anaphors of a batch: gold choices aligned with the batch's tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.analysis.annotations.annotated import KINDS, Annotated
from headwise.analysis.annotations.antecedents import Choice, choices
from headwise.analysis.annotations.words import covering
from headwise.analysis.corpus.batching import Batch, Tokens


@dataclass(frozen=True, eq=False)
class Anaphors:
    """The anaphors of one batch, aligned with its tokens; candidates are padded to the longest list.

    Attributes:
        row: the anaphor's text in the batch.
        pieces: positions of its head word's tokens, padded with the first.
        share: weight of each piece: 1/(number of pieces), 0 for padding.
        targets: which tokens stand for each candidate's head word.
        gold: which candidates are antecedents.
        same: which candidates are the anaphor's own word again.
        kind: index of the anaphor's kind in pronoun, proper, nominal.
    """

    row: Int[Tensor, " item"]
    pieces: Int[Tensor, "item piece"]
    share: Float[Tensor, "item piece"]
    targets: Bool[Tensor, "item candidate key"]
    gold: Bool[Tensor, "item candidate"]
    same: Bool[Tensor, "item candidate"]
    kind: Int[Tensor, " item"]

    def to(self, device: torch.device) -> Anaphors:
        """The same on another device."""
        return Anaphors(**{name: value.to(device) for name, value in vars(self).items()})

    def some(self, which: Int[Tensor, " chosen"]) -> Anaphors:
        """A part of them."""
        return Anaphors(**{name: value[which] for name, value in vars(self).items()})


def anaphors_of(batch: Batch, tokens: Tokens) -> tuple[Anaphors | None, Counter[str]]:
    """The anaphors of a batch whose texts have coreference links, and what was left out, by reason.

    Mentions that truncation cut are left out: as an anaphor with its item, as a candidate with all items it
    takes part in, since a choice without it would be easier.

    >>> ids, none = torch.tensor([[1]]), torch.zeros(1, 1, 2, dtype=torch.long)
    >>> from headwise.analysis.corpus.texts import Text
    >>> tokens = Tokens(ids, ids > 0, ids < 0, ids, none)
    >>> anaphors_of(Batch({}, [Text("a")], {"": tokens}), tokens)
    (None, Counter({'text without coreference links': 1}))
    """
    left: Counter[str] = Counter()
    found: list[tuple[int, Choice, Tensor, list[Tensor]]] = []
    for i, text in enumerate(batch.texts):
        gold = text.links
        if not isinstance(gold, Annotated) or gold.relation != "coreference":
            left["text without coreference links"] += 1
            continue
        asked, reasons = choices(gold)
        left.update({reason: count for reason, count in reasons.items() if count})
        # Offsets count characters of each text of a pair: only the first text's tokens can be meant.
        first = tokens.valid[i] if tokens.second is None else tokens.valid[i] & ~tokens.second[i]
        offsets = torch.where(first[:, None], tokens.offsets[i], 0).cpu()
        words = torch.where(first, tokens.words[i], -1).cpu()
        masks = {span: covering(span, offsets, words) for c in asked for span in (c.anaphor, *c.candidates)}
        for choice in asked:
            mine = masks[choice.anaphor]
            targets = [mask for span in choice.candidates if (mask := masks[span]) is not None]
            if mine is None or len(targets) < len(choice.candidates):
                left["mention cut by truncation"] += 1
            else:
                found.append((i, choice, mine, targets))
    return (_stacked(found) if found else None), left


def _stacked(found: list[tuple[int, Choice, Tensor, list[Tensor]]]) -> Anaphors:
    most = max(len(choice.candidates) for _, choice, _, _ in found)
    widest = max(int(mine.sum()) for _, _, mine, _ in found)
    width = len(found[0][2])
    pieces = torch.zeros(len(found), widest, dtype=torch.long)
    share = torch.zeros(len(found), widest)
    targets = torch.zeros(len(found), most, width, dtype=torch.bool)
    gold, same = torch.zeros(2, len(found), most, dtype=torch.bool)
    for k, (_, choice, mine, masks) in enumerate(found):
        at = torch.nonzero(mine).flatten()
        pieces[k] = at[0]
        pieces[k, : len(at)] = at
        share[k, : len(at)] = 1 / len(at)
        targets[k, : len(masks)] = torch.stack(masks)
        # Tokens that the anaphor shares with a candidate would let it attend to itself.
        targets[k] &= ~mine
        gold[k, : len(masks)] = torch.tensor(choice.gold)
        same[k, : len(masks)] = torch.tensor(choice.same)
    row = torch.tensor([i for i, _, _, _ in found])
    kind = torch.tensor([KINDS.index(choice.kind) for _, choice, _, _ in found])
    return Anaphors(row, pieces, share, targets, gold, same, kind)
