"""Shapes of what was timed: what the pages read of speed.json and latency.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from headwise.prune.report.shape_parts import LENIENT, Amount, Count, Sides, Words, Yes


class _Part(BaseModel):
    model_config = LENIENT


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


class Latency(_Part):
    """latency.json."""

    setting: dict[str, Words | Count | None] = {}
    off: Amount | None = None
    steady: Yes | None = None


class Speed(_Part):
    """speed.json."""

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
