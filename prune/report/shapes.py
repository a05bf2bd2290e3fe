"""Shapes of a run's files: what the pages read of them, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
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


class _Speed(_Part):
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


class _Chance(_Part):
    all: Amount | None = None
    plan: Amount | None = None
    mean: Amount | None = None
    drawn: list[Amount] = []
    heads: Count | None = None
    n: Count | None = None
    worse: Count | None = None


class _Example(_Part):
    text: Words = ""
    score: Sides | None = None


class _Accuracy(_Part):
    metric: Words = ""
    kind: Words | None = None
    higher_is_better: Yes | None = None
    dense: _Value = _Value()
    cut: _Value = _Value()
    drop: Amount | None = None
    interval: tuple[Amount | None, Amount | None] | None = None
    upper: Amount | None = None
    p: Amount | None = None
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


class _Proof(_Part):
    passed: Yes | None = None
    worst: Amount | None = None
    limit: Amount | None = None
    sites: dict[str, Amount | None] = {}
    bfloat16: Any = None
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


class _Stability(_Part):
    score: Words | None = None
    tau: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    resamples: Count | None = None
    how: Words | None = None


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
    changed: list[_Change] = []
    roles: dict[str, _RoleMoved] = {}
    statistics: dict[str, _Moved] = {}


class _Site(_Part):
    name: Words
    heads: Annotated[int, Field(strict=True, ge=1)]
    kv_heads: Annotated[int, Field(strict=True, ge=1)] | None = None
    layer: Count | Words | None = None


class _Clusters(_Part):
    threshold: Amount | None = None


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
        "environment.json": _Environment,
        "stability.json": _Stability,
        "drift.json": _HeadDrift,
        "evidence/evidence.json": _Facts,
    }.items()
}
_REMEDY = "restore the file or run again"
#: Of one site.
_MOST_HEADS = 65_536


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
        raise BadInput(f"{path}: {where}: {words}, got {_short(first['input'])}; {_REMEDY}") from problem


def check_arrays(path: Path, arrays: Mapping[str, np.ndarray], heads: int) -> None:
    """Return if every array that pages draw has the form that they draw.

    Raises:
        BadInput: an array has another shape or kind, or an index points nowhere.

    >>> check_arrays(Path("evidence"), {"similarity/pearson": np.eye(2)}, 3)
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: evidence: similarity/pearson is (2, 2), expected (3, 3); restore the file or run again
    """
    for name, wanted in _wanted(arrays, heads):
        if arrays[name].shape != wanted:
            raise BadInput(f"{path}: {name} is {arrays[name].shape}, expected {wanted}; {_REMEDY}")
        if arrays[name].dtype.kind not in "biuf":
            raise BadInput(f"{path}: {name} holds {arrays[name].dtype}, expected numbers; {_REMEDY}")
    everyone = np.arange(heads)
    present, order = (arrays.get(f"clusters/{name}", everyone) for name in ("present", "order"))
    if not _among(present, heads) or not np.array_equal(np.sort(order, axis=None), present):
        raise BadInput(f"{path}: clusters/order and clusters/present do not hold the same heads; {_REMEDY}")
    tree = arrays.get("clusters/linkage")
    if tree is not None and not _is_tree(tree, len(present)):
        raise BadInput(f"{path}: clusters/linkage is no tree of {len(present)} heads; {_REMEDY}")


def _wanted(arrays: Mapping[str, np.ndarray], heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in arrays:
        part = name.partition("/")[0]
        if part == "similarity":
            yield name, (heads, heads)
        elif part == "roles" or name in ("clusters/label", "clusters/representative"):
            yield name, (heads,)


def _among(indices: np.ndarray, end: int) -> bool:
    """Whether these are distinct heads in rising order."""
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        return False
    return bool((np.diff(indices) > 0).all()) and (not indices.size or bool(indices[0] >= 0 and indices[-1] < end))


def _is_tree(joints: np.ndarray, leaves: int) -> bool:
    """Whether every leaf and every joint but the last is joined once, and only after it was made."""
    if joints.shape != (max(0, leaves - 1), 4) or not np.isfinite(joints).all():
        return False
    made = leaves + np.arange(len(joints))
    joined = joints[:, :2]
    return bool((joined < made[:, None]).all()) and np.array_equal(
        np.sort(joined, axis=None), np.arange(max(0, 2 * leaves - 2))
    )


def check_heads(path: Path, remove: Mapping[str, Sequence[int]], heads: Sequence[tuple[str, int]]) -> None:
    """Return if heads are counted as they should be, and those that a plan removes are among them.

    Raises:
        BadInput: a head stands twice or has a number that no model has; plan and evidence speak of different heads.

    >>> check_heads(Path("run"), {"0": [4]}, [("0", 0)])
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: run: the plan removes head 0.4, which is not among its heads; restore the file or run again
    """
    known = set(heads)
    if len(known) < len(heads) or any(not 0 <= head < _MOST_HEADS for _, head in heads):
        raise BadInput(f"{path}: the heads are not counted from 0, each once; {_REMEDY}")
    strange = next(((s, h) for s, found in remove.items() for h in found if (s, h) not in known), None)
    if strange is not None:
        raise BadInput(
            f"{path}: the plan removes head {strange[0]}.{strange[1]}, which is not among its heads; {_REMEDY}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
