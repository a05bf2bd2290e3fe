"""Pydantic's errors in the recipe's own words."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headwise.prune.recipe.parts import OneOf
from headwise.prune.recipe_errors import Mistake, Path, Places, did_you_mean, shown

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text (put it in quotes)",
    "bool_type": "true or false",
    "list_type": "a list such as [1, 8]",
    "tuple_type": "a list such as [1, 8]",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "nothing (null)",
}


Data = Mapping[str, Any]


def explain(recipe: type[BaseModel], errors: ValidationError, data: Data, places: Places) -> list[Mistake]:
    """One mistake for each field, with the path as it stands in the file."""
    found: dict[Path, list[Mistake]] = {}
    for error in errors.errors(include_url=False):
        mistake = _explain(recipe, error, data, places)
        found.setdefault(mistake.path, []).append(mistake)
    return [_merged(mistakes) for mistakes in found.values()]


def _merged(mistakes: list[Mistake]) -> Mistake:
    """Where one of several types would do, pydantic tells an error for each: say it in one sentence."""
    first = mistakes[0]
    if len(mistakes) == 1:
        return first
    wanted = [found[1] for m in mistakes if (found := re.match(r"expected (.*), got ", m.problem))]
    got = first.problem.rpartition("got ")[2]
    valid = tuple(name for m in mistakes for name in m.valid)
    problem = f"expected {' or '.join(wanted)}, got {got}" if wanted else first.problem
    return Mistake(first.path, problem, valid, first.place)


def _explain(recipe: type[BaseModel], error: ErrorDetails, data: Data, places: Places) -> Mistake:
    path = tuple(_path(error["loc"], data))
    problem, valid = _problem(recipe, error, path, data)
    return Mistake(path, problem, valid, places.of(path))


def _path(loc: tuple[int | str, ...], data: Any) -> Iterator[int | str]:
    """The location without what pydantic adds: the kind that was chosen, `[key]`."""
    for number, part in enumerate(loc):
        if number and not isinstance(data, dict | list):
            return  # the names of the types that were tried
        last = number == len(loc) - 1
        chosen = isinstance(data, dict) and part not in data and data.get("kind") == part and not last
        if chosen or (part == "[key]" and last):
            continue
        yield part
        inside = isinstance(data, dict) and part in data
        inside = inside or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        data = data[part] if inside else None


def _problem(recipe: type[BaseModel], error: ErrorDetails, path: Path, data: Data) -> tuple[str, tuple[str, ...]]:
    kind, got, context = error["type"], error["input"], error.get("ctx", {})
    table = _table(recipe, path, data)
    if kind == "extra_forbidden":
        fields = tuple(_fields(recipe, path[:-1], data))
        return f"unknown field{did_you_mean(path[-1], fields)}", fields
    if kind == "missing":
        return "missing; this field has no default", table
    if table:
        return _wrong_kind(got, table), table
    if kind == "literal_error":
        names = tuple(re.findall(r"'([^']*)'", str(context.get("expected", ""))))
        if names:
            return f"got {shown(got)}{did_you_mean(got, names)}", names
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown(got)}", ()
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be"):
        return f"{message.replace('Input should be', 'expected')}, got {shown(got)}", ()
    # Our own validators say the whole of it; pydantic's other messages do not say what was got.
    ours = kind in ("value_error", "empty_list", "repeated", "one_budget")
    return message if ours else f"{message}, got {shown(got)}", ()


def _wrong_kind(got: Any, table: tuple[str, ...]) -> str:
    if isinstance(got, dict) and "kind" not in got:
        return "the 'kind' is missing"
    if isinstance(got, dict):
        return f"unknown kind {shown(got['kind'])}{did_you_mean(got['kind'], table)}"
    example = got if got in table else table[0]
    return f"expected a mapping such as {{kind: {example}}}, got {shown(got)}"


def _field(recipe: type[BaseModel], path: Path, data: Data) -> FieldInfo | None:
    """The recipe's field at a path, through the methods that the data chose."""
    model: type[BaseModel] | None = recipe
    found: FieldInfo | None = None
    here: Any = data
    for part in path:
        named = {info.alias or name: info for name, info in model.model_fields.items()} if model else {}
        found = named.get(part) if isinstance(part, str) else None
        here = here.get(part) if isinstance(here, dict) else None
        model = _model_of(found, here) if found else None
    return found


def _model_of(found: FieldInfo, data: Any) -> type[BaseModel] | None:
    one_of = _one_of(found)
    if one_of is not None:
        kind = data.get("kind") if isinstance(data, dict) else None
        return one_of.table.get(kind) if isinstance(kind, str) else None
    options = (found.annotation, *get_args(found.annotation))
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _one_of(found: FieldInfo) -> OneOf | None:
    """The table behind a field, also where the field may be left out (`Annotated[…] | None`)."""
    notes = list(found.metadata)
    if isinstance(found.annotation, types.UnionType) or get_args(found.annotation):
        for option in get_args(found.annotation):
            notes += getattr(option, "__metadata__", ())
    return next((note for note in notes if isinstance(note, OneOf)), None)


def _table(recipe: type[BaseModel], path: Path, data: Data) -> tuple[str, ...]:
    found = _field(recipe, path, data)
    one_of = _one_of(found) if found else None
    return tuple(one_of.table) if one_of else ()


def _fields(recipe: type[BaseModel], path: Path, data: Data) -> Iterator[str]:
    model: type[BaseModel] | None = recipe
    if path:
        found = _field(recipe, path, data)
        here: Any = data
        for part in path:
            here = here.get(part) if isinstance(here, dict) else None
        model = _model_of(found, here) if found else None
    for name, info in (model.model_fields if model else {}).items():
        yield info.alias or name
