"""From spans to tokens, and from token maps to word maps.

Attention TO a word that a tokenizer splits is the sum over its pieces, attention FROM it their mean (Clark et
al. 2019), so that the rows of a word map still sum to 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.analysis.annotations.annotated import Span


def covering(
    span: Span, offsets: Int[Tensor, "token 2"], words: Int[Tensor, " token"]
) -> Bool[Tensor, " token"] | None:
    """The tokens that stand for a span: those that overlap it and the other pieces of their words.

    Args:
        span: characters [start, end) of the text.
        offsets: characters of every token; equal ends for tokens that have none (specials, padding).
        words: word of every token, -1 for none.

    Returns:
        A mask over tokens; None where the span is cut off: its first or last character has no token.

    >>> offsets, words = torch.tensor([[0, 0], [0, 3], [4, 6], [6, 9]]), torch.tensor([-1, 0, 1, 1])
    >>> covering((4, 9), offsets, words).tolist()
    [False, False, True, True]
    """
    start, end = span
    overlap = (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
    if not overlap.any():
        return None
    own = offsets[overlap]
    if int(own[:, 0].min()) > start or int(own[:, 1].max()) < end:
        return None
    whole: Tensor = overlap | (torch.isin(words, words[overlap]) & (words >= 0))
    return whole


def word_indexes(span: Span, offsets: Int[Tensor, "token 2"], words: Int[Tensor, " token"]) -> list[int]:
    """The words that a span covers, by their indexes in the text; empty where the span is cut off.

    >>> offsets, words = torch.tensor([[0, 3], [4, 6], [6, 9]]), torch.tensor([0, 1, 1])
    >>> word_indexes((0, 9), offsets, words)
    [0, 1]
    """
    tokens = covering(span, offsets, words)
    if tokens is None:
        return []
    return sorted({int(word) for word in words[tokens] if word >= 0})


def word_units(words: Int[Tensor, " token"], valid: Bool[Tensor, " token"]) -> Int[Tensor, " token"]:
    """Rows of the word map: words, and every other valid token (specials) as a unit of its own.

    Args:
        words: word of every token, -1 for none.
        valid: False where padded.

    Returns:
        The unit of every token, numbered from 0 in order of first appearance; -1 where padded.

    >>> word_units(torch.tensor([-1, 0, 0, 1, -1, -1]), torch.tensor([True] * 5 + [False])).tolist()
    [0, 1, 1, 2, 3, -1]
    """
    units = torch.full_like(words, -1)
    number: dict[int, int] = {}
    for t in torch.nonzero(valid).flatten().tolist():
        word = int(words[t])
        # A negative key per lone token keeps it apart from every word and every other lone token.
        units[t] = number.setdefault(word if word >= 0 else -2 - t, len(number))
    return units


def word_map(
    maps: Float[Tensor, "*lead query key"], units: Int[Tensor, " token"]
) -> Float[Tensor, "*lead word_query word_key"]:
    """The word-level map of one text: sum over the pieces attended to, mean over those attending.

    Args:
        maps: attention of one text, any leading axes (head, site).
        units: from `word_units`; tokens with -1 are left out.

    >>> word_map(torch.full((1, 4, 4), 0.25), torch.tensor([0, 1, 1, 2]))[0, 0].tolist()
    [0.25, 0.5, 0.25]
    """
    count = int(units.max()) + 1 if len(units) else 0
    pieces = torch.nn.functional.one_hot(units.clamp(min=0), max(1, count)).to(maps.dtype)
    pieces = (pieces * (units >= 0)[:, None].to(maps.dtype)).to(maps.device)
    mean = pieces / pieces.sum(dim=0).clamp(min=1)
    return mean.T @ maps @ pieces
