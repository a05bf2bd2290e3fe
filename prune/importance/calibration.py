"""Calibration: what a score may look at, and the passes over the texts that scores and repair share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headwise.analysis.sites import Site

Loss = Literal["labels", "outputs", "predictions"]
LOSSES = (
    "whose gradient: the task's loss; or, without labels, the divergence from the model's own predictions, "
    "or the outputs themselves"
)
#: The same where one of them is chosen by what the model puts out.
AUTO = f"{LOSSES}; `auto` takes the outputs if they score whole texts, else the task's loss"
#: The same for scores that close gates and look how far the model gets from what it said.
DISTANCES = (
    "the task's loss; or, without labels, the divergence (KL) from the dense model's predictions, or the mean squared "
    "difference of its outputs"
)


@dataclass
class Calibration:
    """Model, sites and texts that decide.

    Attributes:
        model: the model, dense or cut (a `torch.nn.Module`; this page is read without torch).
        sites: its sites.
        batches: calibration texts, to be iterated as often as needed.
        task: its `losses(model, batch)` gives a differentiable loss per example.
        evidence: what is known about the heads, if anything.
        seed: seed of scores that draw.
    """

    model: Any
    sites: Mapping[str, Site]
    batches: Any
    task: Any = None
    evidence: Any = None
    seed: int = 0
    _passes: dict[str, Any] = field(default_factory=dict, repr=False)

    def gradients(
        self, moments: bool = False, loss: str = "labels", slopes: bool = False, grouped: bool = False
    ) -> Any:
        """One forward-backward pass (`gradients.Collected`), made once and then remembered.

        Args:
            moments: whether gradient-weighted moments are wanted too.
            slopes: whether second moments of the gradients at the outputs are.
            grouped: whether both are to be kept by group of texts as well, if they have to be made and are not too large.
            loss: `labels` for the task's loss; `outputs` and `predictions` are losses without labels; `auto` is
                `outputs` if these score whole texts, else `labels`.

        Raises:
            BadInput: there is no task, or its loss cannot be used.
        """
        from headwise.analysis.errors import BadInput
        from headwise.prune.importance.gradients import collect
        from headwise.prune.importance.outputs import Outputs
        from headwise.prune.importance.predictions import Predictions

        if loss == "auto":
            loss = "outputs" if self.scores_texts() else "labels"
        known = self._passes.get(loss)
        if known is None or (moments and not known.fit) or (slopes and not known.slopes):
            unlabelled = {"outputs": Outputs, "predictions": Predictions}
            task = unlabelled[loss](self.seed) if loss in unlabelled else self.task
            if task is None:
                raise BadInput(
                    "this score needs a task with a loss; choose a task, loss: predictions, or score magnitude or random"
                )
            known = collect(
                self.model,
                self.sites,
                self.batches,
                task,
                # What was had before stays had.
                moments=moments or bool(known and known.fit),
                slopes=slopes or bool(known and known.slopes),
                grouped=grouped,
                label="Gradients of the loss",
            )
            self._passes[loss] = known
        return known

    def contexts(self, grouped: bool = False) -> Any:
        """One forward pass with unweighted moments (`gradients.Collected`), made once and then remembered."""
        from headwise.prune.importance.gradients import collect

        if "none" not in self._passes:
            self._passes["none"] = collect(
                self.model, self.sites, self.batches, grouped=grouped, label="Moments of contexts"
            )
        return self._passes["none"]

    def decided(self) -> None:
        """Let go of what only decides: second moments of gradients, and moments by group of texts."""
        for known in self._passes.values():
            if hasattr(known, "slopes"):
                known.slopes.clear()
                known.grouped = None

    def scores_texts(self) -> bool:
        """Whether the model's outputs are scores of whole texts (`outputs.scores_texts`), looked up once."""
        from headwise.prune.importance.outputs import scores_texts

        if "scores texts" not in self._passes:
            self._passes["scores texts"] = scores_texts(self.model, self.batches)
        return bool(self._passes["scores texts"])

    def outputs(self) -> dict[str, float]:
        """What the dense model puts out along each text's random direction: of the gradients' pass, or one forward."""
        from headwise.prune.importance.outputs import outputs_of

        if "dense outputs" not in self._passes:
            known = self._passes.get("outputs")
            values = known.losses if known else outputs_of(self.model, self.batches, self.seed)
            self._passes["dense outputs"] = values
        found: dict[str, float] = self._passes["dense outputs"]
        return found

    def moments(self, weight: str, loss: str = "labels", grouped: bool = False) -> Any:
        """Moments of contexts, `weight` being `gradient` or `none`."""
        if weight != "gradient":
            return self.contexts(grouped)
        return self.gradients(moments=True, loss=loss, grouped=grouped)

    def meter(self, budget: Any, unit: Any) -> Any:
        """What the budget is counted with (`metering.meter_of`), made once and remembered."""
        from headwise.prune.speed.metering import meter_of

        key = f"meter of {budget!r} by {unit}"
        if key not in self._passes:
            self._passes[key] = meter_of(self.model, self.sites, budget, unit)
        return self._passes[key]
