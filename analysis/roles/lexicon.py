"""Which tokens of a vocabulary belong to a class: decided once for each, then looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.corpus.batching import Tokens

#: By tokenizer and class, a number for every id: 1 in the class, 0 not, −1 not asked yet.
_KNOWN: WeakKeyDictionary[Any, dict[str, Tensor]] = WeakKeyDictionary()


def members(name: str, holds: Callable[[str], bool], tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Which tokens' text, without blanks around it, is of a class; none where tokens came without their tokenizer.

    Args:
        name: of the class; what was decided for a token is remembered under it.
        holds: whether a token's text is in the class.
        tokens: the tokens.

    >>> ids, none = torch.tensor([[1]]), torch.zeros(1, 1, 2, dtype=torch.long)
    >>> members("digits", str.isdigit, Tokens(ids, ids > 0, ids < 0, ids, none)).tolist()
    [[False]]
    """
    if tokens.tokenizer is None or tokens.ids.numel() == 0:
        return torch.zeros_like(tokens.valid)
    ids = tokens.ids.cpu()
    known = _KNOWN.setdefault(tokens.tokenizer, {})
    table = known.get(name, torch.empty(0, dtype=torch.int8))
    size = int(ids.max()) + 1
    if len(table) < size:
        table = known[name] = torch.cat([table, torch.full((size - len(table),), -1, dtype=torch.int8)])
    found = table[ids]
    new = found < 0
    if bool(new.any()):
        for token in torch.unique(ids[new]).tolist():
            # Decoded, because byte-level vocabularies write a curly quote as three letters.
            table[token] = int(holds(tokens.tokenizer.decode([token]).strip()))
        found = table[ids]
    return (found > 0).to(tokens.ids.device)
