"""Scale: every head that stays speaks louder or softer, by least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.compensation.apply import apply
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes


class Scale(BaseModel):
    """One number for each head that stays: W'_h = a_h W_h, so that the block's output moves as little as possible.

    The scalars of a site solve one least-squares problem, min E |W_S c_S - sum_h (a_h - 1) W_h c_h|^2 over the heads h
    that stay, S those that go (Kwon et al., 2022, "A fast post-training pruning framework for transformers": mask
    tuning, here with the inputs that the dense block gets). Fewer numbers than `reconstruction`, and no column is
    mixed with another: a step between `bias` and that for few calibration texts. Where the projection has a bias,
    contexts are centred and the bias takes what is left of the mean.

    >>> Scale().kind
    'scale'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["scale"] = "scale"
    ridge: float = Field(default=1e-2, gt=0, le=10, description="added to the diagonal, in units of its mean")
    bias: Literal["auto", "never"] = Field(default="auto", description="`auto` refits the bias where there is one")

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `repair`."""
        passes.contexts()

    def repair(self, calibration: Calibration, remove: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Scale the heads that stay and report the relative error per site."""
        return {"kind": self.kind, **apply(calibration, remove, self._scale, "none")}

    def _scale(
        self, weight: np.ndarray, moments: Any, gone: np.ndarray, has_bias: bool, width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        with_bias = has_bias and self.bias == "auto"
        new = weight * np.repeat(scalars(weight, moments.matrix(centred=with_bias), gone, width, self.ridge), width)
        if not with_bias:
            return new, np.zeros(len(weight))
        lost = weight - new
        lost[:, gone] = weight[:, gone]
        return new, lost @ moments.mean()


def scalars(weight: np.ndarray, second: np.ndarray, gone: np.ndarray, width: int, ridge: float) -> np.ndarray:
    """What to multiply every head's columns with, [head]; 1 for heads that go, which nothing reads any more.

    Args:
        weight: [out, column].
        second: second moment of the contexts, [column, column]; centred for the best fit with a bias.
        gone: indices of the removed columns, whole heads.
        width: columns of a head.
        ridge: draws towards 1, in units of the mean diagonal.

    >>> second = np.ones((2, 2))  # two heads that always say the same
    >>> scalars(np.array([[1.0, 2.0]]), second, np.array([1]), width=1, ridge=1e-9).round(6)
    array([3., 1.])
    """
    from headwise.prune.importance.repair_cost import ridged

    heads = len(second) // width
    # What two heads write into the output together: E <W_g c_g, W_h c_h>.
    together = ((weight.T @ weight) * second).reshape(heads, width, heads, width).sum((1, 3))
    lost = np.isin(np.arange(heads), gone // width)
    found = np.ones(heads)
    if lost.any() and not lost.all():
        own = ridged(together[np.ix_(~lost, ~lost)], ridge)
        found[~lost] += np.linalg.solve(own, together[np.ix_(~lost, lost)].sum(1))
    return found
