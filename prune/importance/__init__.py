"""Scores of heads, one a file: high = keep."""

from collections.abc import Mapping

from pydantic import BaseModel

from headwise.prune.importance.ablation import Ablation
from headwise.prune.importance.activation import Activation
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.combined import Combined
from headwise.prune.importance.confidence import Confidence
from headwise.prune.importance.fisher import Fisher
from headwise.prune.importance.gates import Gates
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.magnitude import Magnitude
from headwise.prune.importance.random import Random
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.importance.redundancy import Redundancy
from headwise.prune.importance.roles import Roles
from headwise.prune.importance.scores import Scores
from headwise.prune.importance.taylor2 import Taylor2
from headwise.prune.importance.variance import Variance

SCORES: Mapping[str, type[BaseModel]] = {
    "ablation": Ablation,
    "activation": Activation,
    "combined": Combined,
    "confidence": Confidence,
    "fisher": Fisher,
    "gates": Gates,
    "gradient": Gradient,
    "magnitude": Magnitude,
    "random": Random,
    "reconstruction": Reconstruction,
    "redundancy": Redundancy,
    "roles": Roles,
    "taylor2": Taylor2,
    "variance": Variance,
}

__all__ = ["SCORES", "Calibration", "Scores"]
