"""Tables as JSON says them: an object a row, in a list or a line each; or an object of whole columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput

#: Lists in which exports put their rows, beside what else they tell (a version, say).
_ROWS = ("data", "rows", "examples", "records", "instances")
_FORMS = (
    'expected a list of objects, an object a line, {"data": [objects]}, or whole columns of one length: '
    '{"text": [...], "label": [...]}'
)

Columns = dict[str, Sequence[Any]]


def json_columns(path: Path, content: str, *, lines: bool) -> tuple[Columns, tuple[str, ...]]:
    """Columns of equal length, by name, and what a reader should know about how they were read.

    Args:
        path: for messages.
        content: of the file.
        lines: whether its suffix says that every line is a row, also where there is one alone.

    Raises:
        BadInput: it is no JSON, or none of the forms of a table.

    >>> json_columns(Path("a.json"), '{"text": ["a", "b"], "label": [0, 1]}', lines=False)[0]
    {'text': ['a', 'b'], 'label': [0, 1]}
    """
    if content.lstrip().startswith("["):
        return _of_rows(path, _whole(path, content)), ()
    if not lines and content.lstrip().startswith("{"):
        try:
            return _of_object(path, json.loads(content))
        except json.JSONDecodeError as error:
            # Objects a line are often called .json, too.
            if error.msg != "Extra data":
                raise BadInput(f"{path}:{error.lineno}: not JSON: {error.msg}; {_FORMS}") from error
    return _of_rows(path, _line_by_line(path, content)), ()


def _of_rows(path: Path, rows: Sequence[Any]) -> Columns:
    for i, item in enumerate(rows):
        if not isinstance(item, dict):
            raise BadInput(f"{path}: entry {i + 1} is {type(item).__name__}, expected an object with named fields")
    if not rows:
        raise BadInput(f"{path}: the file is empty")
    names = dict.fromkeys(key for item in rows for key in item)
    return {name: [item.get(name) for item in rows] for name in names}


def _of_object(path: Path, found: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]]:
    """A table that is one object: its rows in a list, its columns, or a single row."""
    inner = [name for name in found if name in _ROWS and isinstance(found[name], dict)]
    if len(found) == 1 and inner:
        return _of_object(path, found[inner[0]])
    tables = [name for name, value in found.items() if value and _all(value, dict)]
    held = [name for name in tables if name in _ROWS or len(found) == 1]
    if len(held) == 1:
        beside = ", ".join(map(repr, list(found)[:8]))
        notes = (f"the rows are those of {held[0]!r}; the file holds {beside}",) if len(found) > 1 else ()
        return _of_rows(path, found[held[0]]), notes
    if len(tables) > 1 and len(tables) == len(found):
        raise BadInput(
            f"{path}: holds several tables, {', '.join(map(repr, tables))}; write the one that is meant to a file of its own"
        )
    if found and all(isinstance(value, list) for value in found.values()):
        return _of_lists(path, found)
    if found and all(_numbered(value) for value in found.values()):
        first = list(next(iter(found.values())))
        if any(list(value) != first for value in found.values()):
            raise BadInput(f"{path}: its columns have other rows; {_FORMS}")
        return {name: list(value.values()) for name, value in found.items()}, ()
    return _of_rows(path, [found] if found else []), ()


def _of_lists(path: Path, found: Mapping[str, list[Any]]) -> tuple[Columns, tuple[str, ...]]:
    lengths = {name: len(value) for name, value in found.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in list(lengths.items())[:8])
        raise BadInput(f"{path}: its lists differ in length ({told}); {_FORMS}")
    return dict(found), ()


def _numbered(value: Any) -> bool:
    """Whether a column is told row by row, {"0": ..., "1": ...}, as pandas writes it unless told otherwise."""
    return isinstance(value, dict) and bool(value) and all(key.isdecimal() for key in value)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _whole(path: Path, content: str) -> list[Any]:
    try:
        found: list[Any] = json.loads(content)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    return found


def _line_by_line(path: Path, content: str) -> list[Any]:
    found = []
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise BadInput(f"{path}:{number}: not JSON: {error.msg}; expected an object a line") from error
    return found
