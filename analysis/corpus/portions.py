"""Batches cut to a memory budget: short texts together, long ones apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.padding import right_padded
from headwise.analysis.progress import track

#: Texts a portion at most.
MOST = 32
#: Numbers alive per entry of a map: the eager kernel's scores and probabilities, and a reducer's work space.
COPIES = 2
BYTES = 4


class Portions:
    """The texts of batches, in portions whose maps fit a budget of memory, each cut to its own longest text.

    A batch of long texts comes in pieces; the short ones after it stay together, which is what makes a corpus
    of mixed lengths fast. A text that does not fit alone is a portion of its own.

    Args:
        batches: to be iterated as often as these.
        heads: of the whole model.
        memory: bytes that the maps of one portion, and what is computed from them, may take.

    >>> from headwise.analysis.corpus.texts import Text
    >>> ids = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0]])
    >>> tokens = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(2, 4, 2, dtype=torch.long))
    >>> batch = Batch({"input_ids": ids}, [Text("long"), Text("short")], {"": tokens}, (0, 1))
    >>> [tuple(one.inputs["input_ids"].shape) for one in Portions([batch], heads=1, memory=128)]
    [(1, 4), (1, 1)]
    """

    def __init__(self, batches: Iterable[Batch], heads: int, memory: int) -> None:
        self.batches, self.heads, self.memory = batches, heads, memory

    def __iter__(self) -> Iterator[Batch]:
        for batch in track(self.batches, label="looking at attention heads"):
            aligned = right_padded(batch)
            lengths = _lengths(aligned)
            start = 0
            while start < len(lengths):
                stop = start + 1
                while stop < len(lengths) and self._fits(lengths[start : stop + 1]):
                    stop += 1
                yield _rows(aligned, slice(start, stop))
                start = stop

    def _fits(self, lengths: list[int]) -> bool:
        return len(lengths) <= texts_that_fit(self.heads, max(lengths), self.memory)


def texts_that_fit(heads: int, length: int, memory: int, most: int = MOST) -> int:
    """How many texts of a length fit a memory budget when all maps of a portion are alive; at least 1.

    >>> texts_that_fit(8, 512, 200 * 2**20), texts_that_fit(8, 16384, 200 * 2**20)
    (12, 1)
    """
    return max(1, min(most, memory // max(1, map_bytes(heads, length))))


def map_bytes(heads: int, length: int) -> int:
    """Bytes that the maps of one text take while it is looked at.

    >>> map_bytes(heads=1, length=10)
    800
    """
    return heads * length * length * BYTES * COPIES


def shortened(batch: Batch, length: int, texts: int = 1) -> Batch:
    """The first text of a batch, or the first few, cut to their first tokens.

    >>> from headwise.analysis.corpus.texts import Text
    >>> ids = torch.tensor([[5, 6, 7, 8]])
    >>> tokens = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 4, 2, dtype=torch.long))
    >>> shortened(Batch({"input_ids": ids}, [Text("a")], {"": tokens}), 2).inputs["input_ids"].tolist()
    [[5, 6]]
    """
    return _rows(right_padded(batch), slice(0, texts), length)


def _lengths(batch: Batch) -> list[int]:
    """The longest stream of every text."""
    counts = [tokens.valid.sum(1) for tokens in batch.tokens.values()]
    if not counts:
        return [max(1, batch.width)] * len(batch.texts)
    return [max(1, batch.width, int(count)) for count in torch.stack(counts).amax(0)]


def _rows(batch: Batch, rows: slice, most: int | None = None) -> Batch:
    """Some texts of a batch padded on the right, without the padding that only the others needed."""
    needed = {name: max(1, int(tokens.valid[rows].sum(1).max())) for name, tokens in batch.tokens.items()}
    width = {name: needed[name] if most is None else min(most, needed[name]) for name in needed}
    before = {name: tuple(tokens.valid.shape) for name, tokens in batch.tokens.items()}
    count = len(batch.texts)

    def cut(value: Any, stream: str) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != count:
            return value
        if stream in before and value.dim() == 3 and (len(value), *value.shape[2:]) == before[stream]:
            return value[rows, :, : width[stream]]  # a choice a text, as heads of multiple choice take it
        along = stream in before and tuple(value.shape[:2]) == before[stream]
        return value[rows, : width[stream]] if along else value[rows]

    def stream_of(name: str) -> str:
        return "decoder" if name.startswith("decoder_") and "decoder" in before else ""

    def fewer(tokens: Tokens, stream: str) -> Tokens:
        return replace(tokens, **{f.name: cut(getattr(tokens, f.name), stream) for f in fields(tokens)})

    return replace(
        batch,
        inputs={name: cut(value, stream_of(name)) for name, value in batch.inputs.items()},
        texts=batch.texts[rows],
        tokens={name: fewer(tokens, name) for name, tokens in batch.tokens.items()},
        index=batch.index[rows],
        targets=cut(batch.targets, "decoder"),
    )
