"""Overlapping windows: long annotated documents in pieces that a model can read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.errors import BadInput


def windows(annotated: Iterable[Annotated], tokenizer: Any, limit: int, overlap: float = 0.5) -> list[Annotated]:
    """The texts, those longer than `limit` tokens as windows that overlap, links kept where both ends are inside.

    What stands in the overlap with the window before was judged there, with more text before it: it serves as
    a candidate, and is not judged again. Links over more than a window are lost and counted in `skipped`.

    Args:
        annotated: the texts.
        tokenizer: a fast one, which gives the characters of its tokens.
        limit: tokens of a window, special ones included.
        overlap: share of a window that the next one repeats.

    Raises:
        BadInput: the tokenizer gives no characters, or the window is too short for its special tokens.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    >>> [one.text for one in windows([Annotated("a b c d e f")], tokenizer, limit=4)]
    ['a b c d', 'c d e f']
    """
    if not 0 <= overlap < 1:
        raise BadInput(f"overlap: got {overlap}, expected at least 0 and below 1")
    room = limit - tokenizer.num_special_tokens_to_add()
    if room < 2:
        raise BadInput(f"limit: got {limit} tokens, which leaves {room} for text; expected at least 2")
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput("windows need a fast tokenizer, which tells the characters of its tokens")
    found = []
    for one in annotated:
        encoded = tokenizer(one.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        spans = [tuple(span) for span in encoded["offset_mapping"]]
        found += [one] if len(spans) <= room else _cut(one, spans, room, overlap)
    return found


def _cut(one: Annotated, tokens: list[tuple[int, int]], room: int, overlap: float) -> list[Annotated]:
    step = max(1, int(room * (1 - overlap)))
    found: list[Annotated] = []
    held: set[int] = set()
    judged_to = 0
    for start in range(0, len(tokens), step):
        stop = min(start + room, len(tokens))
        begin, end = tokens[start][0], tokens[stop - 1][1]
        part, links = _window(one, begin, end, judged_to)
        held |= links
        found.append(part)
        judged_to = end
        if stop == len(tokens):
            break
    lost = len(one.links) - len(held)
    if lost:
        skipped = {**found[0].skipped, "link over more than a window": lost}
        found[0] = replace(found[0], skipped=skipped)
    return found


def _window(one: Annotated, begin: int, end: int, judged_from: int) -> tuple[Annotated, set[int]]:
    """The characters [begin, end) with what is annotated inside, and which links that keeps."""

    def inside(span: Span) -> bool:
        return begin <= span[0] and span[1] <= end

    def move(span: Span) -> Span:
        return span[0] - begin, span[1] - begin

    kept = [k for k, (a, b) in enumerate(one.links) if inside(a) and inside(b)]
    mentions = [m for m in one.mentions if inside(m.span) and (m.head is None or inside(m.head))]
    part = Annotated(
        one.text[begin:end],
        tuple((move(one.links[k][0]), move(one.links[k][1])) for k in kept),
        one.relation,
        None if one.candidates is None else tuple(move(span) for span in one.candidates if inside(span)),
        one.template,
        tuple(one.labels[k] for k in kept) if one.labels else (),
        tuple(Mention(move(m.span), m.head and move(m.head), m.kind) for m in mentions),
        one.skipped if begin == 0 else {},
    )
    fresh = tuple(span for span in part.spans() if span[1] + begin > judged_from)
    return replace(part, judged=fresh), set(kept)
