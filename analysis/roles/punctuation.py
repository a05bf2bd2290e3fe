"""Punctuation: attention to the marks of a text."""

from __future__ import annotations

import unicodedata

from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.corpus.batching import Tokens
from headwise.analysis.roles.lexicon import members
from headwise.analysis.roles.relation import View


def punctuation(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Keys whose characters are all punctuation (Unicode category P), special tokens left out.

    None where the tokens' text is not known.

    >>> import torch
    >>> from headwise.analysis.roles.relation import View
    >>> punctuation(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    if view.keys is None or view.keys.tokenizer is None:
        return None
    return is_punctuation(view.keys).to(view.allowed.device)[:, None, :] & view.allowed


def is_punctuation(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Which tokens are punctuation marks; none where the tokens came without their tokenizer.

    >>> import torch
    >>> ids, none = torch.tensor([[1]]), torch.zeros(1, 1, 2, dtype=torch.long)
    >>> is_punctuation(Tokens(ids, ids > 0, ids < 0, ids, none)).any().item()
    False
    """
    return members("punctuation", _marks, tokens) & tokens.valid & ~tokens.special


def _marks(text: str) -> bool:
    piece = text.removeprefix("##") or text
    return bool(piece) and all(unicodedata.category(mark).startswith("P") for mark in piece)
