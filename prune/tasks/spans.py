"""Spans of passages: windows over long ones, the best span of all windows, and how near it comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput


@dataclass(frozen=True, eq=False)
class Passage:
    """One window: a question with a part of its passage.

    Attributes:
        text: position of the example in its corpus.
        ids: token ids, with their segment ids in `types`.
        types: see `ids`.
        offsets: characters [start, end) of each token in its own text.
        inside: whether a token is part of the passage.
        first: the token that stands for "no answer": [CLS] where there is one.
    """

    text: int
    ids: np.ndarray
    types: np.ndarray
    offsets: np.ndarray
    inside: np.ndarray
    first: int


def passages_of(tokenizer: Any, text: Text, index: int, width: int, stride: int) -> list[Passage]:
    """Windows over an example's passage, each with the whole question; none if the question leaves no room."""
    question = len(tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"])
    room = width - question - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 1:
        return []
    encoded = tokenizer(
        text.text, text.pair, truncation="only_second", max_length=width, stride=min(stride, room - 1),
        return_overflowing_tokens=True, return_offsets_mapping=True, verbose=False,
    )  # fmt: skip
    found = []
    for k, ids in enumerate(encoded["input_ids"]):
        inside = np.array([sequence == 1 for sequence in encoded.sequence_ids(k)])
        types = encoded["token_type_ids"][k] if "token_type_ids" in encoded else [0] * len(ids)
        marker = getattr(tokenizer, "cls_token_id", None)
        first = ids.index(marker) if marker in ids else 0
        offsets = np.array(encoded["offset_mapping"][k], dtype=np.int64)
        found.append(Passage(index, np.array(ids), np.array(types), offsets, inside, first))
    return found


def best_span(starts: np.ndarray, ends: np.ndarray, inside: np.ndarray, longest: int) -> tuple[float, int, int]:
    """The largest start + end of a span inside the passage of at most `longest` tokens, with its two tokens.

    >>> best_span(np.array([9.0, 1, 2]), np.array([9.0, 3, 1]), np.array([False, True, True]), 2)
    (4.0, 1, 1)
    """
    tokens = np.flatnonzero(inside)
    sums = starts[tokens][:, None].astype(np.float64) + ends[tokens][None, :]
    apart = tokens[None, :] - tokens[:, None]
    sums[(apart < 0) | (apart >= longest)] = -np.inf
    row, column = np.unravel_index(int(sums.argmax()), sums.shape)
    return float(sums[row, column]), int(tokens[row]), int(tokens[column])


def best_answer(
    passage: str, windows: Iterable[tuple[Passage, np.ndarray, np.ndarray]], longest: int, *, allowed: bool
) -> str:
    """The answer that the windows over a passage give together; empty if none is likelier than any.

    Args:
        passage: the whole text.
        windows: each with its logits of starts and ends.
        longest: tokens of an answer at most.
        allowed: whether there may be no answer. Its score is the least of all windows: only where no window
            has an answer is there none.
    """
    best, answer, none = -np.inf, "", np.inf
    for window, starts, ends in windows:
        none = min(none, float(starts[window.first]) + float(ends[window.first]))
        if not window.inside.any():
            continue
        score, start, end = best_span(starts, ends, window.inside, longest)
        if score > best:
            best = score
            answer = passage[int(window.offsets[start, 0]) : int(window.offsets[end, 1])]
    return "" if allowed and none > best else answer


def score_of(said: str, right: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of an answer against the best of the right ones (none at all: the empty answer).

    Raises:
        BadInput: torchmetrics is not installed.

    >>> score_of("the Dog", ["dog", "a cat"])
    (1.0, 1.0)
    """
    try:
        from torchmetrics.functional.text import squad
    except ImportError as error:
        raise BadInput("F1 of answers needs torchmetrics: pip install 'headwise[tasks]'") from error
    target: dict[str, Any] = {"answer_start": [0] * max(1, len(right)), "text": list(right) or [""]}
    found = squad([{"prediction_text": said, "id": "0"}], [{"answers": target, "id": "0"}])
    return float(found["exact_match"]) / 100, float(found["f1"]) / 100
