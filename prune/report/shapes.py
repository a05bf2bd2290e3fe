"""Shapes of a run's files: what the pages read of them, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from headwise.analysis.errors import BadInput
from headwise.prune.report.shape_parts import LENIENT, Amount, Words, Yes
from headwise.prune.report.shapes_of_cost import Accuracy, Recovery
from headwise.prune.report.shapes_of_heads import Facts, HeadDrift, Stability
from headwise.prune.report.shapes_of_speed import Latency, Speed


class _Part(BaseModel):
    model_config = LENIENT


class _Ends(_Part):
    difference: Amount | None = None
    floor: Amount | None = None
    floor_kernels: list[Words] | Words | None = None


class _Narrow(_Part):
    worst: Amount | None = None
    limit: Amount | None = None


class _Proof(_Part):
    passed: Yes | None = None
    worst: Amount | None = None
    limit: Amount | None = None
    sites: dict[str, Amount | None] = {}
    bfloat16: _Narrow | None = None
    end_to_end: _Ends | None = None


class _Repair(_Part):
    error_before: Amount | None = None
    error_after: Amount | None = None


class _Compensation(_Part):
    kind: Words | None = None
    sites: dict[str, _Repair] | None = None


class _Model(_Part):
    id: Words | None = None
    revision: Words | None = None
    own_code: Yes | None = None


class _Environment(_Part):
    model: _Model | None = None
    texts: dict[str, dict[str, Any]] | None = None
    command: list[Words] | Words | None = None
    serving: dict[str, Any] | None = None
    finished: Words | None = None


#: What is checked of which file; files that are not listed are shown as they stand.
SHAPES: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(shape)
    for name, shape in {
        "accuracy.json": Accuracy,
        "speed.json": Speed,
        "proof.json": _Proof,
        "compensation.json": _Compensation,
        "recovery.json": Recovery,
        "environment.json": _Environment,
        "stability.json": Stability,
        "drift.json": HeadDrift,
        "latency.json": Latency,
        "evidence/evidence.json": Facts,
    }.items()
}
#: What to do about a damaged file.
REMEDY = "restore the file or run again"


def check_shape(path: Path, content: Mapping[str, Any], name: str) -> None:
    """Return if a file says what pages read of it in the form that they read.

    Args:
        path: of the file, for the message.
        content: of the file.
        name: key of `SHAPES`; any other is not looked at.

    Raises:
        BadInput: something has another form; the message names the first such field.

    >>> check_shape(Path("speed.json"), {"rows": 3}, "speed.json")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: speed.json: rows: input should be a valid list, got 3; restore the file or run again
    """
    if name not in SHAPES:
        return
    try:
        SHAPES[name].validate_python(content)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
        words = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        raise BadInput(f"{path}: {where}: {words}, got {_short(first['input'])}; {REMEDY}") from problem


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
