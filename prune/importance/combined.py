"""Combined: several scores, by their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import LOSSES, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled, untouched
from headwise.prune.importance.scores import Scores


class Combined(BaseModel):
    """Weighted mean of the ranks that other scores, each with its defaults, give a head; 0 lowest, 1 highest.

    Equal scores share their mean rank. What a score knows about heads together is not used. All parts that look at a
    loss look at the same.

    >>> Combined(scores={"gradient": 2, "redundancy": 1}).scores
    {'gradient': 2.0, 'redundancy': 1.0}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["combined"] = "combined"
    scores: Mapping[str, Annotated[float, Field(gt=0)]] = Field(
        default={"gradient": 1.0, "redundancy": 1.0}, description="kind of score: its weight"
    )
    loss: Loss = Field(default="labels", description=f"of the parts that look at one; {LOSSES}")

    @field_validator("scores")
    @classmethod
    def _known(cls, scores: Mapping[str, float]) -> Mapping[str, float]:
        from headwise.prune.importance import SCORES

        wrong = [kind for kind in scores if kind not in SCORES or kind == "combined"]
        if wrong or not scores:
            valid = ", ".join(kind for kind in SCORES if kind != "combined")
            raise PydanticCustomError(
                "scores",
                "expected scores among {valid}, got {wrong}",
                {"valid": valid, "wrong": ", ".join(wrong) or "none"},
            )
        return dict(scores)

    @model_validator(mode="after")
    def _loss_of_some(self) -> Combined:
        if self.loss != "labels" and not any(_looks(type(part)) for part, _ in self._parts()):
            raise ValueError(f"loss: none of {', '.join(self.scores)} looks at a loss; leave it out")
        return self

    def _parts(self) -> list[tuple[Any, float]]:
        from headwise.prune.importance import SCORES

        found = [(SCORES[kind], weight) for kind, weight in self.scores.items()]
        return [(part(loss=self.loss) if _looks(part) else part(), weight) for part, weight in found]

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: those of its parts, which share what they can.

        >>> passes = Passes({}, texts=8, batches=1, scored=True)
        >>> Combined(scores={"gradient": 2, "redundancy": 1}).foretell(passes)
        >>> passes.back
        1.0
        """
        for part, _ in self._parts():
            part.foretell(passes)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, from 0 to 1.

        Raises:
            BadInput: one of the scores cannot be had.
        """
        found = [(part.score(calibration), weight) for part, weight in self._parts()]
        values = _joined(calibration.sites, found)
        return Scores(self.kind, values, resampled=_resampled(calibration.sites, values, found))


def _looks(score: type[BaseModel]) -> bool:
    """Whether a score looks at a loss."""
    return "loss" in score.model_fields


def _joined(
    sites: Mapping[str, Site], found: Sequence[tuple[Mapping[str, np.ndarray], float]]
) -> dict[str, np.ndarray]:
    """Weighted mean of ranks, each from 0 to 1."""
    from scipy.stats import rankdata

    heads = [(name, head) for name, site in sites.items() for head in site.kept]
    total = np.zeros(len(heads))
    for scores, weight in found:
        ranks = rankdata([scores[name][head] for name, head in heads]) - 1
        total += weight * ranks / max(len(heads) - 1, 1)
    total /= sum(weight for _, weight in found)
    values = {name: np.full(site.heads, np.nan) for name, site in sites.items()}
    for (name, head), value in zip(heads, total, strict=True):
        values[name][head] = value
    return values


def _resampled(
    sites: Mapping[str, Site], values: Mapping[str, np.ndarray], found: Sequence[tuple[Scores, float]]
) -> Resampled:
    """All parts on the same texts drawn again."""
    ways = [(scores.kind, scores.resampled, weight) for scores, weight in found]
    for kind, way, _ in ways:
        if way is None or way.anew is None:
            return Resampled(f"{kind}: {way.how if way else 'does not say how it depends on single texts'}")
    texts = [way.texts for _, way, _ in ways if way is not None and way.texts is not None]
    if not texts:
        return untouched(values, "none of the scores looks at a text")

    def anew(weights: np.ndarray) -> Mapping[str, np.ndarray]:
        return _joined(sites, [(way.anew(weights), weight) for _, way, weight in ways if way and way.anew])

    return Resampled("; ".join(f"{kind}: {way.how}" for kind, way, _ in ways if way), np.maximum.reduce(texts), anew)
