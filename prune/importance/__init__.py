"""Scores of heads, one a file: high = keep."""

from collections.abc import Mapping

from pydantic import BaseModel

from headwise.prune.importance.ablation import Ablation
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.fisher import Fisher
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.magnitude import Magnitude
from headwise.prune.importance.random import Random
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.importance.redundancy import Redundancy
from headwise.prune.importance.scores import Scores

SCORES: Mapping[str, type[BaseModel]] = {
    "ablation": Ablation,
    "fisher": Fisher,
    "gradient": Gradient,
    "magnitude": Magnitude,
    "random": Random,
    "reconstruction": Reconstruction,
    "redundancy": Redundancy,
}

__all__ = ["SCORES", "Calibration", "Scores"]
