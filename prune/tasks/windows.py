"""Language-model losses of texts of any length: overlapping windows, every token scored once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.analysis.gates.uncached import uncached
from headwise.analysis.progress import track

#: Logits held at a time, in numbers: a vocabulary of 150,000 makes them the largest tensor of all.
_BUDGET = 64_000_000


@dataclass(frozen=True)
class Window:
    """Tokens [start, end) of a text, of which those from `score` on are scored."""

    text: int
    start: int
    end: int
    score: int


def windows_of(length: int, width: int, stride: int, text: int = 0) -> list[Window]:
    """Windows that score each of the tokens 1 … length − 1 once, with all the context that fits.

    The first window scores all its tokens but the first; each later one moves on by `stride` and scores
    what the one before it did not, so every token but the earliest has at least width − stride before it.

    >>> [(w.start, w.end, w.score) for w in windows_of(10, 6, 3)]
    [(0, 6, 1), (3, 9, 6), (6, 10, 9)]
    """
    found, scored, start = [], 1, 0
    while scored < length:
        end = min(start + width, length)
        found.append(Window(text, start, end, scored))
        scored, start = end, start + stride
    return found


def token_losses(
    logits: Float[Tensor, "batch token vocabulary"],
    ids: Int[Tensor, "batch token"],
    scored: Bool[Tensor, "batch token"],
) -> Float[Tensor, "batch token"]:
    """Nats of each scored token given those before it; 0 elsewhere (and always for the first).

    >>> losses = token_losses(torch.zeros(1, 2, 4), torch.tensor([[0, 1]]), torch.tensor([[True, True]]))
    >>> [round(x, 4) for x in losses[0].tolist()]
    [0.0, 1.3863]
    """
    targets = torch.where(scored, ids, -100)[:, 1:]
    # A row at a time: one float32 copy of a row's logits instead of the batch's.
    rows = [
        nn.functional.cross_entropy(row[:-1].float(), target, ignore_index=-100, reduction="none")
        for row, target in zip(logits, targets, strict=True)
    ]
    return nn.functional.pad(torch.stack(rows), (1, 0))


def summed_losses(
    model: nn.Module, rows: Sequence[np.ndarray], width: int, stride: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """`[text]` nats and `[text]` scored tokens of every row of token ids; the caller sets evaluation mode."""
    windows = [w for i, ids in enumerate(rows) for w in windows_of(len(ids), width, stride, i)]
    windows.sort(key=lambda w: (w.start - w.end, w.text, w.start))
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 1))  # type: ignore[union-attr,operator]
    sums, counts = np.zeros(len(rows)), np.zeros(len(rows))
    batched = list(_grouped(windows, batch_size, vocabulary))
    device: Any = model.device
    for group in track(batched, len(batched), "scoring texts"):
        longest = max(w.end - w.start for w in group)
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        scored, valid = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        for i, window in enumerate(group):
            size = window.end - window.start
            ids[i, :size] = torch.from_numpy(rows[window.text][window.start : window.end])
            valid[i, :size] = 1
            scored[i, window.score - window.start : size] = True
        ids, valid, scored = ids.to(device), valid.to(device), scored.to(device)
        logits = model(input_ids=ids, attention_mask=valid, **uncached(model)).logits
        nats = token_losses(logits, ids, scored).double().sum(-1).cpu().numpy()
        for window, value in zip(group, nats, strict=True):
            sums[window.text] += value
            counts[window.text] += window.end - window.score
    return sums, counts


def _grouped(windows: Sequence[Window], batch_size: int, vocabulary: int) -> Iterator[list[Window]]:
    start = 0
    while start < len(windows):
        length = windows[start].end - windows[start].start
        size = max(1, min(batch_size, _BUDGET // (length * vocabulary)))
        yield list(windows[start : start + size])
        start += size
