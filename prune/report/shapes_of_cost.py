"""Shapes of what it cost: what the pages read of accuracy.json and recovery.json."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from headwise.prune.report.shape_parts import LENIENT, Amount, Count, Sides, Words, Yes


class _Part(BaseModel):
    model_config = LENIENT


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


class Accuracy(_Cost):
    """accuracy.json."""

    metric: Words
    meaning: Words | None = None
    kind: Words | None = None
    higher_is_better: Yes | None = None
    test: Words | None = None
    flips: _Flips | None = None
    n: Count | None = None
    skipped: dict[str, Count] | None = None
    beside: dict[str, Sides] | None = None
    per_class: dict[str, dict[str, Any]] | None = None
    changed: list[_Example] | None = None
    against_dense: dict[str, Any] | None = None
    chance: _Chance | None = None


class Recovery(_Part):
    """recovery.json."""

    kind: Words
    epochs: Count = 0
    loss: Sides = {}
    untrained: _Cost | None = None
    texts: Count | None = None
    held_out: Count | None = None
    lora: Count | None = None
