"""WinoBias: occupations and pronouns in brackets (Zhao et al. 2018), `1 [The cook] met the clerk; [he] left.`."""

from __future__ import annotations

import re
from pathlib import Path

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.annotations.mistakes import Mistakes, read_lines

_NUMBER = re.compile(r"\s*\d+\s+")
_BRACKET = re.compile(r"\[([^\[\]]+)\]")
_OCCUPATION = re.compile(r"(?:the|an?) (.+)", re.IGNORECASE)
_GOOD = "1 [The cook] met the clerk and [he] left."


def read_winobias(path: str | Path) -> list[Annotated]:
    r"""A text a line: what stands in brackets is one cluster, each linked to the one before.

    The file marks no distractor: the other occupation is found as "the" or "a" with an occupation that
    stands in brackets somewhere in the same file.

    Raises:
        BadInput: the file cannot be read, or a line has not two bracketed phrases or more.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "pro.txt.dev")
    >>> _ = file.write_text("1 [The cook] met the clerk and [he] left.\n2 [The clerk] slept until [she] woke.")
    >>> text = read_winobias(file)[0]
    >>> text.text, text.links, len(text.mentions)
    ('The cook met the clerk and he left.', (((27, 29), (0, 8)),), 3)
    """
    mistakes = Mistakes(path)
    rows: list[tuple[str, list[Span]]] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        text, spans = _unbracketed(_NUMBER.sub("", line, count=1).strip())
        if len(spans) < 2 or "[" in text or "]" in text:
            mistakes.add(number, f"got {len(spans)} phrases in brackets, expected at least 2")
        rows.append((text, spans))
    mistakes.stop_if_any(_GOOD)
    occupations = {
        match[1].lower()
        for text, spans in rows
        for start, end in spans
        if (match := _OCCUPATION.fullmatch(text[start:end]))
    }
    names = "|".join(sorted(map(re.escape, occupations), key=len, reverse=True)) or "(?!)"
    other = re.compile(rf"\b(?:the|an?) (?:{names})\b", re.IGNORECASE)
    return [_annotated(text, spans, other) for text, spans in rows]


def _unbracketed(line: str) -> tuple[str, list[Span]]:
    text, last = "", 0
    spans: list[Span] = []
    for match in _BRACKET.finditer(line):
        text += line[last : match.start()]
        inside = match[1].strip()
        spans.append((len(text), len(text) + len(inside)))
        text += inside
        last = match.end()
    return text + line[last:], spans


def _annotated(text: str, spans: list[Span], other: re.Pattern[str]) -> Annotated:
    others = [
        match.span()
        for match in other.finditer(text)
        if not any(s < match.end() and e > match.start() for s, e in spans)
    ]
    links = tuple(zip(spans[1:], spans[:-1], strict=True))
    return Annotated(text, links, mentions=tuple(Mention(span) for span in sorted([*spans, *others])))
