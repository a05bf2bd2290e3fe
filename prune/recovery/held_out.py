"""Held out: one text in eight, chosen by its content, tells when a training has learned enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.prune.importance.gradients import HELD_OUT, held_out


def parted(texts: Iterable[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches to train on, and batches of the texts that are held out, whatever batches they came in.

    The texts are those that check a repair, too, so that neither was fitted on them.

    Raises:
        BadInput: no text to train on is left, or none to hold out.
    """
    used, held = [], []
    for batch in texts:
        apart = held_out(batch.texts)
        used += [rows_of(batch, ~apart)] if bool((~apart).any()) else []
        held += [rows_of(batch, apart)] if bool(apart.any()) else []
    if not used or not held:
        count = sum(len(batch.texts) for batch in (*used, *held))
        raise BadInput(
            f"recover: {count} calibration texts leave none to {'hold out' if used else 'train on'} (one in "
            f"{HELD_OUT} is held out, by content); give more calibration texts"
        )
    return used, held


def rows_of(batch: Batch, keep: Tensor) -> Batch:
    """The batch with some of its texts.

    Args:
        batch: a batch.
        keep: [batch] bool.

    Raises:
        BadInput: an input that has no row per text.

    >>> from headwise.analysis.corpus.texts import Text
    >>> import torch
    >>> batch = Batch({"input_ids": torch.tensor([[1], [2]])}, [Text("a"), Text("b")], {})
    >>> rows_of(batch, torch.tensor([False, True])).inputs["input_ids"].tolist()
    [[2]]
    """
    if bool(keep.all()):
        return batch
    count = len(batch.texts)
    ragged = [name for name, value in batch.inputs.items() if isinstance(value, Tensor) and len(value) != count]
    if ragged:
        raise BadInput(f"recover: input {ragged[0]} has no row per text, so that texts could be held out")
    places = keep.nonzero().flatten()

    def rows(value: Any) -> Any:
        return value[places.to(value.device)] if isinstance(value, Tensor) else value

    tokens = {
        stream: replace(
            found, ids=rows(found.ids), valid=rows(found.valid), special=rows(found.special), words=rows(found.words),
            offsets=rows(found.offsets), second=rows(found.second),
        )
        for stream, found in batch.tokens.items()
    }  # fmt: skip
    chosen = places.tolist()
    return replace(
        batch,
        inputs={name: rows(value) for name, value in batch.inputs.items()},
        texts=[batch.texts[i] for i in chosen],
        tokens=tokens,
        index=tuple(batch.index[i] for i in chosen) if batch.index else (),
        targets=rows(batch.targets),
    )
