"""Annotated texts as JSON lines: the form for a user's own relations.

One object a line: `{"text": "Ann said she ran.", "links": [[[9, 12], [0, 3]]]}`. A link is [from, to], two
character spans [start, end); optional keys: `relation`, `candidates` (spans), `template`, `labels` (a name a
link) and `mentions` (`{"span": …, "head": …, "kind": …}`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from headwise.analysis.annotations.annotated import Annotated, Mention
from headwise.analysis.annotations.mistakes import Mistakes, read_lines
from headwise.analysis.errors import BadInput

#: Lists become tuples, but floats and booleans are no offsets.
_Span = tuple[StrictInt, StrictInt]


class _Mention(BaseModel):
    model_config = ConfigDict(extra="forbid")
    span: _Span
    head: _Span | None = None
    kind: str = ""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1)
    links: list[tuple[_Span, _Span]] = []
    relation: str = "coreference"
    candidates: list[_Span] | None = None
    template: str | None = None
    labels: list[str] = []
    mentions: list[_Mention] = []

    def annotated(self) -> Annotated:
        """The row as an annotated text; BadInput if a span does not fit it."""
        return Annotated(
            self.text,
            tuple(self.links),
            self.relation,
            None if self.candidates is None else tuple(self.candidates),
            self.template,
            tuple(self.labels),
            tuple(Mention(m.span, m.head, m.kind) for m in self.mentions),
        )


def read_jsonl(path: str | Path) -> list[Annotated]:
    """Annotated texts of a JSON-lines file, in its order; blank lines are passed over.

    Raises:
        BadInput: the file cannot be read, is empty, or has malformed rows (all counted, ten shown).

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.jsonl")
    >>> write_jsonl(file, [Annotated("Ann said she ran.", links=(((9, 12), (0, 3)),))])
    >>> read_jsonl(file)[0].links
    (((9, 12), (0, 3)),)
    """
    mistakes = Mistakes(path)
    found = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            found.append(_Row.model_validate(json.loads(line)).annotated())
        except json.JSONDecodeError as error:
            mistakes.add(number, f"not JSON: {error.msg} at column {error.colno}")
        except ValidationError as error:
            for fault in error.errors():
                mistakes.add(number, f"{_path(fault['loc'])}: {_explained(fault)}")
        except BadInput as error:
            mistakes.add(number, str(error))
    mistakes.stop_if_any('{"text": "Ann said she ran.", "links": [[[9, 12], [0, 3]]]}')
    if not found:
        raise BadInput(f"{path}: no annotated text in it; expected one JSON object a line")
    return found


def write_jsonl(path: str | Path, texts: Iterable[Annotated]) -> None:
    """Write annotated texts as JSON lines that `read_jsonl` reads back to equal ones."""
    with Path(path).open("w", encoding="utf-8") as file:
        for annotated in texts:
            file.write(json.dumps(_written(annotated), ensure_ascii=False) + "\n")


def _written(annotated: Annotated) -> dict[str, Any]:
    row: dict[str, Any] = {"text": annotated.text, "links": annotated.links, "relation": annotated.relation}
    for name in ("candidates", "template", "labels"):
        if getattr(annotated, name) not in (None, ()):
            row[name] = getattr(annotated, name)
    mentions = [{"span": m.span, "head": m.head, "kind": m.kind} for m in annotated.mentions]
    if mentions:
        row["mentions"] = [{k: v for k, v in m.items() if v} for m in mentions]
    if annotated.candidates == ():
        row["candidates"] = []
    return row


def _path(where: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return text.lstrip(".") or "row"


def _explained(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return f"unknown key, expected {', '.join(_Row.model_fields)}"
    if fault["type"] == "missing":
        return "missing"
    got = repr(fault["input"])
    return f"got {got[:60]}, {fault['msg'][0].lower()}{fault['msg'][1:]}"
