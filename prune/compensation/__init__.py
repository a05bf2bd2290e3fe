"""Compensation: change what is left so that each block's output moves as little as possible; no training."""

from collections.abc import Mapping

from pydantic import BaseModel

from headwise.prune.compensation.bias import Bias
from headwise.prune.compensation.none import NoCompensation
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.scale import Scale
from headwise.prune.compensation.sequential import Sequential

COMPENSATIONS: Mapping[str, type[BaseModel]] = {
    "none": NoCompensation,
    "bias": Bias,
    "scale": Scale,
    "reconstruction": Reconstruct,
    "sequential": Sequential,
}

__all__ = ["COMPENSATIONS"]
