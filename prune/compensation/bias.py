"""Bias: what the removed heads say on average moves into the bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from headwise.prune.compensation.apply import apply
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes


class Bias(BaseModel):
    """b' = b + W_S E[c_S] (An et al., 2024, "Fluctuation-based adaptive structured pruning").

    Where the projection has no bias nothing changes.

    >>> Bias().kind
    'bias'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["bias"] = "bias"

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `repair`."""
        passes.contexts()

    def repair(self, calibration: Calibration, remove: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Move the mean contribution into the bias and report the relative error per site."""
        return {"kind": self.kind, **apply(calibration, remove, _mean_into_bias, "none")}


def _mean_into_bias(
    weight: np.ndarray, moments: Any, gone: np.ndarray, has_bias: bool, _width: int
) -> tuple[np.ndarray, np.ndarray]:
    moved = weight[:, gone] @ moments.mean()[gone] if has_bias else np.zeros(len(weight))
    return weight, moved
