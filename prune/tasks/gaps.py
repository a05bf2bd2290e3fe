"""Pseudo-likelihood: every token of a text masked in turn and filled in from all the others (Salazar 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.corpus.encoding import Row
from headwise.analysis.progress import track

#: Logits held at a time, in numbers, as for other language-model losses.
_BUDGET = 64_000_000


@dataclass(frozen=True)
class Gap:
    """One token of one text that is masked."""

    text: int
    token: int


def gaps_of(rows: Sequence[Row]) -> list[Gap]:
    """A gap for every token that is not special, those of the longest texts first."""
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i].ids), i))
    return [Gap(i, int(token)) for i in order for token in np.flatnonzero(~rows[i].special)]


def gap_losses(
    model: nn.Module, rows: Sequence[Row], gaps: Sequence[Gap], mask: int, batch_size: int
) -> Iterator[Float[Tensor, " gap"]]:
    """Nats of each masked token, some gaps at a time, in their order."""
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 1))  # type: ignore[union-attr,operator]
    start = 0
    while start < len(gaps):
        width = len(rows[gaps[start].text].ids)
        group = gaps[start : start + max(1, min(batch_size, _BUDGET // (width * vocabulary)))]
        start += len(group)
        yield _filled(model, rows, group, mask)


def text_losses(model: nn.Module, rows: Sequence[Row], mask: int) -> Float[Tensor, " text"]:
    """Nats of all tokens of each text, one row a text in every call, so that gradients are the texts' own."""
    places = [np.flatnonzero(~row.special).tolist() for row in rows]
    calls = []
    for k in range(max(1, *(len(mine) for mine in places))):
        group = [Gap(i, mine[min(k, len(mine) - 1)] if mine else 0) for i, mine in enumerate(places)]
        nats = _filled(model, rows, group, mask)
        calls.append(nats * torch.tensor([float(k < len(mine)) for mine in places], device=nats.device))
    return torch.stack(calls).sum(0)


def _filled(model: nn.Module, rows: Sequence[Row], group: Sequence[Gap], mask: int) -> Float[Tensor, " gap"]:
    """One call: nats of the token of each gap, given all others of its text."""
    device: Any = model.device
    width = max(1, *(len(rows[gap.text].ids) for gap in group))
    ids = torch.zeros(len(group), width, dtype=torch.long)
    valid = torch.zeros_like(ids)
    for i, gap in enumerate(group):
        row = rows[gap.text]
        ids[i, : len(row.ids)] = torch.from_numpy(row.ids)
        valid[i, : len(row.ids)] = 1
    places = torch.tensor([gap.token for gap in group])
    each = torch.arange(len(group))
    right = ids[each, places].clone()
    ids[each, places] = mask
    logits = model(input_ids=ids.to(device), attention_mask=valid.to(device)).logits
    at = logits[each.to(device), places.to(device)].float()
    return nn.functional.cross_entropy(at, right.to(device), reduction="none")


def summed_gaps(model: nn.Module, rows: Sequence[Row], mask: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """`[text]` nats and `[text]` masked tokens of every text; the caller sets evaluation mode."""
    gaps = gaps_of(rows)
    sums, counts = np.zeros(len(rows)), np.zeros(len(rows))
    owner = np.array([gap.text for gap in gaps], dtype=np.int64)
    done = 0
    for nats in track(gap_losses(model, rows, gaps, mask, batch_size), label="filling gaps"):
        part = owner[done : done + len(nats)]
        np.add.at(sums, part, nats.double().cpu().numpy())
        np.add.at(counts, part, 1)
        done += len(nats)
    return sums, counts
