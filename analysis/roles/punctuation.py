"""Punctuation: attention to the marks of a text."""

from __future__ import annotations

import unicodedata
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.batching import Tokens
from headwise.analysis.roles.relation import View

_KNOWN: WeakKeyDictionary[Any, dict[int, bool]] = WeakKeyDictionary()


def punctuation(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Keys whose characters are all punctuation (Unicode category P), special tokens left out.

    None where the tokens' text is not known.

    >>> from headwise.analysis.roles.relation import View
    >>> punctuation(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    if view.keys is None or view.keys.tokenizer is None:
        return None
    return is_punctuation(view.keys).to(view.allowed.device)[:, None, :] & view.allowed


def is_punctuation(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Which tokens are punctuation marks; none where the tokens came without their tokenizer.

    >>> ids, none = torch.tensor([[1]]), torch.zeros(1, 1, 2, dtype=torch.long)
    >>> is_punctuation(Tokens(ids, ids > 0, ids < 0, ids, none)).any().item()
    False
    """
    if tokens.tokenizer is None:
        return torch.zeros_like(tokens.valid)
    known = _KNOWN.setdefault(tokens.tokenizer, {})
    ids, inverse = torch.unique(tokens.ids, return_inverse=True)
    for token in ids.tolist():
        if token not in known:
            known[token] = _marks(tokens.tokenizer, token)
    table = torch.tensor([known[token] for token in ids.tolist()], device=tokens.ids.device)
    return table[inverse] & tokens.valid & ~tokens.special


def _marks(tokenizer: Any, token: int) -> bool:
    # Decoded, because byte-level vocabularies write a curly quote as three letters.
    text = tokenizer.decode([token]).strip()
    piece = text.removeprefix("##") or text
    return bool(piece) and all(unicodedata.category(mark).startswith("P") for mark in piece)
