"""Texts to encoded rows: token ids with their specials, words and characters, one text at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.analysis.corpus.texts import Text

_WORD = re.compile(r"\w+|[^\w\s]")
#: Texts that go to the tokenizer at a time.
_CHUNK = 1000
#: The tokens that a tokenizer reserves by name.
_KINDS = ("bos", "eos", "cls", "sep", "pad", "mask")


@dataclass(frozen=True, eq=False)
class Row:
    """One encoded text: integer columns of equal length, kept between passes.

    Attributes:
        ids: token ids.
        types: segment ids (0 where the tokenizer knows none).
        special: tokens that do not come from plain text.
        words: index of the token's word (see `word_spans`), -1 for none.
        offsets: characters [start, end) in the token's own text, without surrounding blanks.
        second: whether the token belongs to the pair's second text.
        truncated: whether the text was longer than the limit.
    """

    ids: np.ndarray
    types: np.ndarray
    special: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    second: np.ndarray
    truncated: bool = False

    def without_first(self) -> Row:
        """The row without its first token."""
        return Row(
            self.ids[1:], self.types[1:], self.special[1:], self.words[1:], self.offsets[1:], self.second[1:],
            self.truncated,
        )  # fmt: skip

    def shifted(self, start: int) -> Row:
        """The row as a decoder reads it when it should say this text: `start` first, the last token gone.

        >>> columns = [np.array([5, 6])] * 2 + [np.array([False, True])] + [np.array([0, -1])]
        >>> Row(*columns, np.zeros((2, 2), int), np.zeros(2, bool)).shifted(1).ids.tolist()
        [1, 5]
        """
        return Row(
            np.concatenate([[start], self.ids[:-1]]),
            np.concatenate([[0], self.types[:-1]]),
            np.concatenate([[True], self.special[:-1]]),
            np.concatenate([[-1], self.words[:-1]]),
            np.concatenate([[[0, 0]], self.offsets[:-1]]),
            np.concatenate([[False], self.second[:-1]]),
            self.truncated,
        )


def word_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of every word; punctuation marks are words of their own.

    The same for every tokenizer: some report one "word" for a whole text, so theirs are not used.

    >>> word_spans("It's on.")
    [(0, 2), (2, 3), (3, 4), (5, 7), (7, 8)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def with_choice(text: Text, choice: str, *, apart: bool) -> Text:
    """The text as a model reads it with one of its choices: as a second text, or going on with it.

    Args:
        text: with `choices`; a second text it has stands before the choice.
        choice: one of them.
        apart: as a second text, as models of multiple choice read; otherwise as one text.

    >>> with_choice(Text("The sky is", choices=("blue",)), "blue", apart=False).text
    'The sky is blue'
    """
    if apart:
        return Text(text.text, f"{text.pair} {choice}" if text.pair else choice)
    return Text(" ".join(part for part in (text.text, text.pair, choice) if part))


def encode(texts: Sequence[Text], tokenizer: Any, limit: int | None) -> list[Row]:
    """One row a text, in order; texts longer than `limit` tokens are truncated by the tokenizer."""
    rows: list[Row] = []
    reserved = _reserved(tokenizer)
    for start in range(0, len(texts), _CHUNK):
        chunk = texts[start : start + _CHUNK]
        found: dict[int, Row] = {}
        # A tokenizer takes pairs for all or for none of a call, so the two kinds go in turn.
        for paired in (False, True):
            where = [i for i, text in enumerate(chunk) if (text.pair is not None) is paired]
            if where:
                encoded = _encode_alike([chunk[i] for i in where], tokenizer, limit, reserved)
                found.update(zip(where, encoded, strict=True))
        rows.extend(found[i] for i in range(len(chunk)))
    return rows


def _encode_alike(texts: Sequence[Text], tokenizer: Any, limit: int | None, reserved: list[int]) -> list[Row]:
    fast = bool(getattr(tokenizer, "is_fast", False))
    pairs = None if texts[0].pair is None else [text.pair for text in texts]
    encoded = tokenizer(
        [text.text for text in texts],
        pairs,
        truncation=limit is not None,
        max_length=limit,
        return_special_tokens_mask=True,
        return_offsets_mapping=fast,
        verbose=False,
    )
    return [_row(text, encoded, k, fast, limit, reserved) for k, text in enumerate(texts)]


def _row(text: Text, encoded: Any, k: int, fast: bool, limit: int | None, reserved: list[int]) -> Row:
    ids = np.asarray(encoded["input_ids"][k], dtype=np.int64)
    types = np.zeros_like(ids)
    if "token_type_ids" in encoded:
        types = np.asarray(encoded["token_type_ids"][k], dtype=np.int64)
    special = np.asarray(encoded["special_tokens_mask"][k], dtype=bool) | np.isin(ids, reserved)
    words = np.full(len(ids), -1, dtype=np.int64)
    offsets = np.zeros((len(ids), 2), dtype=np.int64)
    second = np.zeros(len(ids), dtype=bool)
    # Without offsets a full row may have been cut short or just fit; it is counted as truncated.
    truncated = len(ids) == limit
    if fast:
        truncated = bool(encoded.encodings[k].overflowing)
        sequences = encoded.sequence_ids(k)
        second = np.asarray([sequence == 1 for sequence in sequences], dtype=bool)
        _align(text, encoded["offset_mapping"][k], sequences, words, offsets)
        words[special], offsets[special] = -1, 0
    return Row(ids, types, special, words, offsets, second, truncated)


def _reserved(tokenizer: Any) -> list[int]:
    """Ids that never come from plain text; the unknown token does, unless it doubles as another."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    others = {getattr(tokenizer, f"{kind}_token_id", None) for kind in _KINDS}
    return [i for i in tokenizer.all_special_ids if i != unknown or i in others]


def _align(
    text: Text,
    spans: Sequence[tuple[int, int]],
    sequences: Sequence[int | None],
    words: np.ndarray,
    offsets: np.ndarray,
) -> None:
    """Fill in each token's word, that of its first visible character, and its visible characters."""
    owners = [_owners(text.text, 0)]
    if text.pair is not None:
        owners.append(_owners(text.pair, len(word_spans(text.text))))
    contents = (text.text, text.pair or "")
    for t, ((start, end), sequence) in enumerate(zip(spans, sequences, strict=True)):
        if sequence is None or end <= start:
            continue
        piece = contents[sequence][start:end]
        visible = piece.strip()
        if visible:
            start += len(piece) - len(piece.lstrip())
            words[t], offsets[t] = owners[sequence][start], (start, start + len(visible))


def _owners(text: str, first: int) -> np.ndarray:
    owners = np.full(len(text) + 1, -1, dtype=np.int64)
    for i, (start, end) in enumerate(word_spans(text)):
        owners[start:end] = first + i
    return owners
