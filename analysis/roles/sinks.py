"""Sinks: attention that is parked on the first token or on separators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.corpus.batching import Tokens
from headwise.analysis.roles.relation import View


def first_token(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The first token of the text ([CLS], <s>, or just the first word), the class token of an image.

    None where keys are neither, and where a tower has no class token.

    >>> first_token(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    return _learned(view, slice(0, 1)) if view.keys is None else _among(view, is_first)


def separator(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Special tokens other than the first ([SEP], </s>); other learned tokens of an image (registers).

    None where there are none.

    >>> separator(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    return _learned(view, slice(1, None)) if view.keys is None else _among(view, is_separator)


def is_first(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Which tokens are the first of their text; the padding stands on the right.

    >>> ids = torch.tensor([[4, 5]])
    >>> is_first(Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 2, 2, dtype=torch.long))).tolist()
    [[True, False]]
    """
    place = torch.arange(tokens.valid.shape[1], device=tokens.valid.device)
    return tokens.valid & (place == 0)


def is_separator(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Which tokens are special but not the first.

    >>> ids = torch.tensor([[4, 5]])
    >>> is_separator(Tokens(ids, ids > 0, ids > 0, ids, torch.zeros(1, 2, 2, dtype=torch.long))).tolist()
    [[False, True]]
    """
    return tokens.special & tokens.valid & ~is_first(tokens)


def _among(view: View, chosen: Callable[[Tokens], Tensor]) -> Tensor | None:
    if view.keys is None:
        return None
    return chosen(view.keys).to(view.allowed.device)[:, None, :] & view.allowed


def _learned(view: View, which: slice) -> Tensor | None:
    """Some of the tokens that stand before the patches of an image."""
    before = [] if view.grid is None else list(range(view.grid.before))[which]
    if not before:
        return None
    chosen = torch.zeros_like(view.allowed)
    chosen[..., before] = True
    return chosen & view.allowed
