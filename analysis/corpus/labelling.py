"""Labels and choices of a table's rows: names, numbers, lists of them, answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.corpus.tables import Table
from headwise.analysis.corpus.texts import Label
from headwise.analysis.errors import BadInput

Column = str | int


def labels_of(values: Sequence[Any], names: Sequence[str] = ()) -> list[Label | None]:
    r"""Labels as names where the source has names, as numbers where all are numbers, else as they stand.

    Answers of question-answering sets (a mapping with a list `text`) become the different answers, a line each;
    without any they are an empty text: there is no answer, which is not the same as no label.

    Raises:
        BadInput: a label is neither a name nor a number nor a list of them.

    >>> labels_of(["1", "0"]), labels_of([["toxic"], []]), labels_of([{"text": ["a", "b", "a"]}, {"text": []}])
    ([1, 0], ['toxic', ''], ['a\nb', ''])
    """
    if any(isinstance(value, Mapping) and isinstance(value.get("text"), list) for value in values):
        return [_answers(value) for value in values]
    # An empty list says that no class fits, which is a label.
    listed = [isinstance(value, list) for value in values]
    values = [_joined(value, names) if isinstance(value, list) else value for value in values]
    if names and not any(isinstance(value, str) for value in values):
        return [names[v] if isinstance(v, int) and 0 <= v < len(names) else None for v in values]
    found = [None if _missing(v) and not whole else v for v, whole in zip(values, listed, strict=True)]
    wrong = next((v for v in found if not isinstance(v, str | int | float | None)), None)
    if wrong is not None:
        raise BadInput(f"a label is {type(wrong).__name__} {str(wrong)[:40]!r}; expected a name or a number")
    texts = [value for value in found if isinstance(value, str)]
    for number in (int, float):
        try:
            [number(value) for value in texts]
        except ValueError:
            continue
        return [number(value) if isinstance(value, str) else value for value in found]
    return [value.strip() if isinstance(value, str) else value for value in found]


def _joined(value: Sequence[Any], names: Sequence[str]) -> str:
    """A list of classes or tags as one text with blanks between, by their names where the source has names.

    Raises:
        BadInput: a name has a blank in it, so the list could not be told apart again.
    """
    said = [names[v] if names and isinstance(v, int) and 0 <= v < len(names) else str(v) for v in value]
    wrong = next((name for name in said if not name or name != "".join(name.split())), None)
    if wrong is not None:
        raise BadInput(f"a label in a list is {wrong[:40]!r}; expected names without blanks")
    return " ".join(said)


def _missing(value: Any) -> bool:
    empty = value is None or (isinstance(value, str) and not value.strip())
    return empty or (isinstance(value, float) and math.isnan(value))


def _answers(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return None
    return "\n".join(dict.fromkeys(" ".join(str(text).split()) for text in value.get("text") or ()))


def columns_of(choices: Column | Sequence[Column] | None) -> tuple[Column, ...]:
    """The columns that choices stand in, as a tuple.

    >>> columns_of("endings"), columns_of(["a", "b"]), columns_of(None)
    (('endings',), ('a', 'b'), ())
    """
    if choices is None:
        return ()
    return (choices,) if isinstance(choices, str | int) else tuple(choices)


def choices_of(
    table: Table, choices: Column | Sequence[Column] | None, labels: list[Label | None] | None, source: str
) -> tuple[list[tuple[str, ...]], list[Label | None] | None]:
    """Every row's possible answers, and its label, by number where the row gives its answers names of their own.

    Raises:
        BadInput: no such column, or a cell that holds no answers.
    """
    columns = [table.values(table.find(column, source, "choices")) for column in columns_of(choices)]
    if not columns:
        return [], labels
    found, said = [], None if labels is None else list(labels)
    for i, cells in enumerate(zip(*columns, strict=True)):
        answers: list[str] = []
        keys: list[str] = []
        for cell in cells:
            texts, names = _parts(cell, source, i)
            answers += texts
            keys += names
        found.append(tuple(answers))
        if said is not None and str(said[i]) in keys:
            said[i] = keys.index(str(said[i]))
    return found, said


def _parts(cell: Any, source: str, row: int) -> tuple[list[str], list[str]]:
    """The answers in a cell, and their names: a text, a list, or a mapping of lists `text` and `label`."""
    names: list[str] = []
    if isinstance(cell, Mapping):
        names = [str(name) for name in cell.get("label") or ()]
        cell = cell.get("text")
    texts = cell if isinstance(cell, list) else [cell]
    if any(not isinstance(text, str | int | float) for text in texts):
        raise BadInput(f"{source}: row {row}: got {str(cell)[:60]!r} as choices, expected texts or a list of texts")
    return [str(text).strip() for text in texts], names
