"""Shapes of what is known of heads: what the pages read of stability.json, drift.json and the evidence."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from headwise.prune.report.shape_parts import LENIENT, Amount, Count, Words


class _Part(BaseModel):
    model_config = LENIENT


class _Again(_Part):
    times: Count = 0
    removed: Count | None = None
    share: Amount | None = None
    least: Amount | None = None
    most: Amount | None = None
    chance: Amount | None = None
    always: Count | None = None
    how: Words | None = None


class Stability(_Part):
    """stability.json."""

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


class HeadDrift(_Part):
    """drift.json."""

    texts: Count
    heads: Count
    looked_for: list[Words] = []
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


class _Settings(_Part):
    effect: Amount | None = None
    level: Amount | None = None


class Facts(_Part):
    """The facts of evidence/evidence.json."""

    model: Any = None
    sites: list[_Site] = []
    clusters: _Clusters | None = None
    interventions: dict[str, _Intervention] = {}
    roles: dict[str, Words] = {}
    settings: _Settings | None = None
