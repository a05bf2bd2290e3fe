"""Shapes of a run's files: what the pages read of them, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from headwise.analysis.errors import BadInput

Amount = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Words = Annotated[str, Field(strict=True)]
Yes = Annotated[bool, Field(strict=True)]
Sides = dict[str, Amount | None]


class _Part(BaseModel):
    """Fields that a page reads; a file may hold more, and lack any."""

    model_config = ConfigDict(extra="allow", frozen=True)


class _Spread(_Part):
    median: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None


class _Ratio(_Spread):
    median: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class _Timing(_Part):
    ratio: _Ratio
    dense_ms: _Spread = _Spread()
    cut_ms: _Spread = _Spread()
    operation_ratio: Amount | None = None
    significant: Yes | None = None
    p: Amount | None = None
    rounds: Count | None = None
    drift: _Spread | None = None


class _Row(_Timing):
    batch: Count
    length: Count


class _Generation(_Part):
    batch: Count
    length: Count
    new_tokens: Count | None = None
    prefill: _Timing
    decode: _Timing
    tokens_per_second: Sides = {}
    cache_bytes: Sides = {}


class _Drift(_Part):
    steady: Yes | None = None
    unsteady: list[tuple[Count, Count]] = []


class _Forecast(_Part):
    batch: Count
    length: Count
    asked: Amount
    then: Amount
    measured: _Spread


class _Latency(_Part):
    setting: dict[str, Words | Count | None] = {}
    off: Amount | None = None
    steady: Yes | None = None


class _Speed(_Part):
    forecast: _Forecast | None = None
    rows: list[_Row] = []
    attention: _Timing | None = None
    generation: list[_Generation] = []
    parameters: Sides = {}
    bytes: Sides = {}
    operations: Sides = {}
    memory: Sides = {}
    cache_bytes: Sides = {}
    drift: _Drift | None = None
    notes: list[Words] = []
    kernel: Words | None = None
    dtype: Words | None = None
    device: Words | None = None
    compiled: Words | None = None
    threads: Count | None = None


class _Value(_Part):
    value: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None


class _Flips(_Part):
    lost: Count | None = None
    gained: Count | None = None


class _Divergences(_Part):
    plan: Amount | None = None
    drawn: list[Amount] = []


class _Chance(_Part):
    all: Amount | None = None
    plan: Amount | None = None
    mean: Amount | None = None
    drawn: list[Amount] = []
    heads: Count | None = None
    n: Count | None = None
    worse: Count | None = None
    repair: Words = "none"
    moved: _Divergences | None = None


class _Example(_Part):
    text: Words = ""
    score: Sides | None = None


class _Cost(_Part):
    dense: _Value = _Value()
    cut: _Value = _Value()
    drop: Amount | None = None
    interval: tuple[Amount | None, Amount | None] | None = None
    upper: Amount | None = None
    p: Amount | None = None


class _Accuracy(_Cost):
    metric: Words
    meaning: Words | None = None
    kind: Words | None = None
    higher_is_better: Yes | None = None
    test: Words | None = None
    flips: _Flips | None = None
    n: Count | None = None
    per_class: dict[str, dict[str, Any]] | None = None
    changed: list[_Example] | None = None
    against_dense: dict[str, Any] | None = None
    chance: _Chance | None = None


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


class _Environment(_Part):
    model: _Model | None = None
    texts: dict[str, dict[str, Any]] | None = None
    command: list[Words] | Words | None = None
    serving: dict[str, Any] | None = None
    finished: Words | None = None


class _Again(_Part):
    times: Count = 0
    removed: Count | None = None
    share: Amount | None = None
    least: Amount | None = None
    most: Amount | None = None
    chance: Amount | None = None
    always: Count | None = None
    how: Words | None = None


class _Stability(_Part):
    score: Words | None = None
    tau: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    resamples: Count | None = None
    how: Words | None = None
    again: _Again | None = None


class _Most(_Part):
    head: Words | None = None
    before: Amount | None = None
    after: Amount | None = None


class _Moved(_Part):
    before: Amount | None = None
    after: Amount | None = None
    moved: Amount | None = None
    most: _Most | None = None


class _Change(_Part):
    head: Words
    before: list[Words] = []
    after: list[Words] = []
    excess: dict[str, tuple[Amount | None, Amount | None]] = {}


class _RoleMoved(_Part):
    before: Count
    after: Count


class _HeadDrift(_Part):
    texts: Count
    heads: Count
    looked_for: list[Words] = []
    changed: list[_Change] = []
    roles: dict[str, _RoleMoved] = {}
    statistics: dict[str, _Moved] = {}


class _Recovery(_Part):
    kind: Words
    epochs: Count = 0
    loss: Sides = {}
    untrained: _Cost | None = None
    texts: Count | None = None
    held_out: Count | None = None
    lora: Count | None = None


class _Site(_Part):
    name: Words
    heads: Annotated[int, Field(strict=True, ge=1)]
    kv_heads: Annotated[int, Field(strict=True, ge=1)] | None = None
    layer: Count | Words | None = None


class _Clusters(_Part):
    threshold: Amount | None = None
    clusters: Count | None = None
    representative: Words | None = None
    mean: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None


class _Intervention(_Part):
    verdict: Words
    reason: Words | None = None
    probe: Words | None = None
    heads: list[Words] | None = None
    base: Amount | None = None
    effect: Amount | None = None
    random: dict[str, Amount | None] | None = None
    says: Words | None = None
    measured: Words | None = None
    draws: Count | None = None
    p: Amount | None = None


class _Facts(_Part):
    model: Any = None
    sites: list[_Site] = []
    clusters: _Clusters | None = None
    interventions: dict[str, _Intervention] = {}


#: What is checked of which file; files that are not listed are shown as they stand.
SHAPES: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(shape)
    for name, shape in {
        "accuracy.json": _Accuracy,
        "speed.json": _Speed,
        "proof.json": _Proof,
        "compensation.json": _Compensation,
        "recovery.json": _Recovery,
        "environment.json": _Environment,
        "stability.json": _Stability,
        "drift.json": _HeadDrift,
        "latency.json": _Latency,
        "evidence/evidence.json": _Facts,
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
