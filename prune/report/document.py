"""The report as plain data: what the HTML, Markdown and JSON pages all say.

Nothing here knows how a page looks. Every number is kept as a number, every sentence as text that is not
yet escaped; the renderers escape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

SCHEMA = 1


@dataclass(frozen=True)
class Figure:
    """One of the few numbers at the top of the page.

    Attributes:
        label: what it is about: `Removed`, `Cost`, `Gain`, `Proof`.
        value: the number, short.
        detail: the sentences that keep the number honest.
        tone: `good`, `bad` or `plain`.
    """

    label: str
    value: str
    detail: tuple[str, ...] = ()
    tone: str = "plain"


@dataclass(frozen=True)
class Limit:
    """A limit that the recipe sets, and whether the run kept it."""

    name: str
    allowed: float
    measured: float | int | None
    kept: bool | None
    words: str


@dataclass(frozen=True)
class Verdict:
    """What a reader must know who reads nothing else."""

    headline: str
    figures: tuple[Figure, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Head:
    """One attention head of the dense model, by its original index.

    Attributes:
        site: name of its site.
        head: original index.
        label: `site.head`.
        track: which map it is drawn in: `` for a single stack, `encoder.self`, `decoder.cross`, ….
        layer: depth in the stack.
        kept: whether the plan keeps it (always true without a plan).
        role: the assigned role that stands furthest above its chance level, or ``.
        roles: every assigned role.
        score: what the plan decided by, high = keep; without a plan the first importance measured.
        rank: 1 = highest score of the model.
        shade: 1 (lowest fifth by rank) to 5 (highest fifth).
        reason: the plan's words about this head.
        cluster: the group of interchangeable heads it belongs to.
        representative: whether it stands for that group.
        nearest: label of the head it resembles most.
        nearest_value: how much it resembles that one.
        numbers: statistics and importances by name.
    """

    site: str
    head: int
    label: str
    track: str
    layer: int
    kept: bool = True
    role: str = ""
    roles: tuple[str, ...] = ()
    score: float | None = None
    rank: int | None = None
    shade: int | None = None
    reason: str = ""
    cluster: int | None = None
    representative: bool | None = None
    nearest: str = ""
    nearest_value: float | None = None
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """How many heads one stack had and has, in query heads and in key/value heads."""

    track: str
    layers: int
    heads: int
    kept: int
    kv_heads: int | None = None
    kv_groups_kept: int | None = None


@dataclass(frozen=True)
class Pair:
    """Two heads and how alike they are, by the main measure and by the others; chance is of the main one."""

    first: str
    second: str
    value: float
    chance: float | None
    others: dict[str, float | None]
    first_kept: bool
    second_kept: bool


@dataclass(frozen=True)
class Cluster:
    """A group of interchangeable heads."""

    number: int
    members: tuple[str, ...]
    representatives: tuple[str, ...]
    kept: tuple[str, ...]
    start: int
    """Position of its first member in `Similarity.order`; its members follow one another there."""


@dataclass(frozen=True)
class Similarity:
    """How alike the heads are: all pairs of the model.

    Attributes:
        measure: name of the main measure.
        chance: what unrelated heads would show.
        array: where the whole matrix is in the run folder.
        present: heads that the tree is made of, as positions in `Report.heads`: leaf i is `present[i]`.
        order: the same positions in the order of the tree's leaves.
        linkage: scipy's linkage rows (first, second, distance, size); distance is 1 - similarity.
        threshold: the mean similarity at which two groups were still joined.
        groups: how groups were made, and how firm they are over resampled texts, in words.
        pairs: the strongest pairs.
        clusters: groups of two or more.
        matrix: the numbers, when the page draws them; not repeated in JSON.
        drawn: whether the page draws the matrix, or only lists pairs.
    """

    measure: str
    chance: str
    array: str
    heads: int
    pairs: tuple[Pair, ...]
    clusters: tuple[Cluster, ...] = ()
    present: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    linkage: tuple[tuple[float, ...], ...] = ()
    threshold: float | None = None
    groups: str = ""
    drawn: bool = False
    matrix: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Evidence:
    """What says that a head plays a role."""

    label: str
    kept: bool
    score: float | None
    chance: float | None
    excess: float | None
    low: float | None
    high: float | None
    p: float | None
    q: float | None
    n: float | None


@dataclass(frozen=True)
class Role:
    """A role, the heads that play it, and their evidence (strongest first)."""

    name: str
    heads: int
    kept: int
    strongest: Evidence | None
    """The head that stands out most, whether or not it was assigned the role."""
    rows: tuple[Evidence, ...]
    says: str = ""
    """What a head that plays it does; empty where the evidence does not say."""


@dataclass(frozen=True)
class Intervention:
    """A role tested by silencing its strongest heads, against as many random heads of the same sites.

    Attributes:
        verdict: `causal`, `correlational` or `not applicable`.
        reason: why it does not apply, or ``.
        says: the result in a sentence.
        measured: what the harm is in, higher = worse.
        effect: how much worse the probe got; low and high: 95 % of what random heads did.
    """

    role: str
    verdict: str
    reason: str = ""
    says: str = ""
    measured: str = ""
    heads: tuple[str, ...] = ()
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    draws: int | None = None
    p: float | None = None


@dataclass(frozen=True)
class Serving:
    """One way to serve the checkpoint."""

    where: str
    answer: str
    """`yes`, `no` or `after saving again`."""
    how: str


@dataclass(frozen=True)
class Snippet:
    """Something to copy: code or a command."""

    title: str
    code: str
    language: str


@dataclass(frozen=True)
class Report:
    """Everything a page says about one run.

    Attributes:
        kind: `prune`, or `analyze` for a folder that holds evidence alone.
        name: name of the run folder.
        model: id, revision, class and type of the model.
        accuracy, speed, compensation, recovery, proof: the folder's JSON files as they stand, `{}` where absent.
        environment: (what, value) in reading order.
        score_name: what `Head.score` is.
        role_rule: what makes a head play a role, in words.
        interventions: roles tested by silencing heads, where that was asked for.
        stability, latency, drift: how firm the ranking is, what was forecast, what the kept heads do after the
            cut; the folder's files as they stand, `{}` where absent.
        plan: what the plan says beside the heads: budget, expected, made_with.
        recipe: the recipe as text.
        notes: what is missing from the folder or must be known to read the page.
    """

    kind: str
    name: str
    model: dict[str, Any]
    verdict: Verdict
    stacks: tuple[Stack, ...] = ()
    heads: tuple[Head, ...] = ()
    score_name: str = ""
    similarity: Similarity | None = None
    roles: tuple[Role, ...] = ()
    role_rule: str = ""
    interventions: tuple[Intervention, ...] = ()
    accuracy: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    compensation: dict[str, Any] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    stability: dict[str, Any] = field(default_factory=dict)
    latency: dict[str, Any] = field(default_factory=dict)
    drift: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    serving: tuple[Serving, ...] = ()
    loading: tuple[Snippet, ...] = ()
    repeating: tuple[Snippet, ...] = ()
    recipe: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def removed(self) -> tuple[Head, ...]:
        """Heads that the plan removes, in canonical order."""
        return tuple(head for head in self.heads if not head.kept)
