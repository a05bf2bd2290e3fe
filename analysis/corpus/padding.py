"""Padding to the right: the one order in which positions, masks and statistics need no second thought."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.analysis.corpus.batching import Batch, Tokens

#: Which inputs of a forward pass run along which stream, beside those whose name starts with `decoder_`.
_MASKS = {"": "attention_mask", "decoder": "decoder_attention_mask"}


def right_padded(batch: Batch) -> Batch:
    """The same batch with each row's tokens first and its padding last; the batch itself if it is so already.

    A row padded on the left gives learned positions to its padding and lets causal padding rows look at
    anything. Moved to the right, both cannot happen in any family, and nothing else changes.

    >>> from headwise.analysis.corpus import Text
    >>> ids, valid = torch.tensor([[0, 7]]), torch.tensor([[False, True]])
    >>> tokens = Tokens(ids, valid, ~valid, ids, torch.zeros(1, 2, 2, dtype=torch.long))
    >>> inputs = {"input_ids": ids, "attention_mask": valid.long()}
    >>> right_padded(Batch(inputs, [Text("a")], {"": tokens})).inputs["input_ids"]
    tensor([[7, 0]])
    """
    for stream, tokens in batch.tokens.items():
        order = _order(tokens.valid)
        if order is not None:
            batch = replace(
                batch,
                tokens=batch.tokens | {stream: _moved(tokens, order)},
                inputs=_moved_inputs(batch, stream, tokens, order),
                targets=_along(batch.targets, order) if stream == "decoder" else batch.targets,
            )
    return batch


def _order(valid: Tensor) -> Int[Tensor, "batch token"] | None:
    """For each place, which token moves there; None if every row has its tokens first already."""
    if bool((valid[:, 1:] <= valid[:, :-1]).all()):
        return None
    return torch.sort(valid.int(), dim=1, descending=True, stable=True).indices


def _moved(tokens: Tokens, order: Tensor) -> Tokens:
    changed = {
        one.name: _along(getattr(tokens, one.name), order)
        for one in fields(tokens)
        if isinstance(getattr(tokens, one.name), Tensor)
    }
    return replace(tokens, **changed)


def _moved_inputs(batch: Batch, stream: str, tokens: Tokens, order: Tensor) -> dict[str, Tensor]:
    mine = stream == "decoder"
    shape = tuple(tokens.valid.shape)
    moved = {
        name: _along(value, order) if name.startswith("decoder_") == mine and tuple(value.shape[:2]) == shape else value
        for name, value in batch.inputs.items()
    }
    # Without a mask the padding would be attended to once it stands after the tokens.
    mask = _MASKS.get(stream, "attention_mask")
    moved.setdefault(mask, _along(tokens.valid, order).long())
    return moved


def _along(value: Any, order: Tensor) -> Any:
    if value is None:
        return None
    index = order.to(value.device).reshape(*order.shape, *(1,) * (value.dim() - 2))
    return value.gather(1, index.expand(-1, -1, *value.shape[2:]))
