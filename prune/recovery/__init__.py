"""Recovery: train a little after the cut, on the texts that decided, until held-out texts gain no more."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.passes import Passes


class NoRecovery(BaseModel):
    """Nothing is trained after the cut.

    >>> NoRecovery().train(None, None, None, [], seed=0)
    {'kind': 'none'}
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["none"] = "none"

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `train`: none."""

    def train(self, dense: Any, smaller: Any, task: Any, texts: Any, *, seed: int) -> dict[str, Any]:
        """Change nothing."""
        return {"kind": self.kind}


# Found on dev texts (benchmarks/recovery.py): higher ones undo more of the repair than they learn.
_RATE, _RATE_OF_UPDATES = 2e-5, 5e-4


class _Training(BaseModel):
    """What both ways of training have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(default=3, ge=1, le=1_000, strict=True, description="most passes over the texts")
    rate: float | None = Field(
        default=None, gt=0, le=1,
        description="highest learning rate, from which it falls linearly to 0; 2e-5 if left out, 5e-4 with lora",
    )  # fmt: skip
    # The rate is highest in the first epoch, which may well take a step back.
    patience: int = Field(
        default=2, ge=1, le=1_000, strict=True, description="epochs without a lower held-out loss before it stops"
    )
    lora: int | None = Field(
        default=None, ge=1, le=4_096, strict=True,
        description="rank of updates (LoRA) that are trained instead of all weights and merged in; needs `peft`",
    )  # fmt: skip

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `train`, if it goes on to the end: by what is not held out, and by what is, before and after.

        >>> passes = Passes({}, texts=64, batches=8, scored=True)
        >>> FineTune(epochs=3).foretell(passes)
        >>> passes.back, passes.forward
        (2.625, 0.5)
        """
        from headwise.prune.importance.gradients import HELD_OUT

        passes.back += self.epochs * (1 - 1 / HELD_OUT)
        passes.forward += (self.epochs + 1) / HELD_OUT

    def train(self, dense: Any, smaller: Any, task: Any, texts: Any, *, seed: int) -> dict[str, Any]:
        """Train the cut model in place and say what it brought; the epoch with the lowest held-out loss stays.

        Args:
            dense: the dense model; it is only read.
            smaller: the cut model; the optimizer is built after the cut.
            task: its `losses(model, batch)` is what counts.
            texts: batches of the texts that decided; one text in eight is held out, by content.
            seed: of the order of batches, and of low-rank updates as they begin.

        Returns:
            `kind`, `rate`, `epochs` (passes made), `loss` held out `before` and `after`, `path` (the same after every
            epoch), `texts` trained on and `held_out` (how many), `lora` (its rank).

        Raises:
            BadInput: too few texts to hold any out, a loss that is not finite, or peft is wanted and missing.
        """
        from headwise.prune.recovery.training import train

        how = self._how()
        told = train(self._loss(dense, task), smaller, texts, seed, **how)
        return {"kind": self.kind, "rate": how["rate"], **told}  # type: ignore[attr-defined]

    def _how(self) -> dict[str, Any]:
        rate = self.rate or (_RATE if self.lora is None else _RATE_OF_UPDATES)
        return {"epochs": self.epochs, "rate": rate, "patience": self.patience, "lora": self.lora}

    @abstractmethod
    def _loss(self, dense: Any, task: Any) -> Any:
        """A loss per text, as a function of model and batch."""


class FineTune(_Training):
    """A few epochs on the task's own loss.

    >>> FineTune(epochs=2).patience
    2
    """

    kind: Literal["finetune"] = "finetune"

    def _loss(self, dense: Any, task: Any) -> Any:
        return task.losses


class Distil(_Training):
    """A few epochs towards the dense model: its predictions, and its hidden states after every layer.

    Per text the divergence from the dense model's predictions (Hinton et al., 2015) plus `hidden` times the squared
    distance of hidden states, relative to their size (Jiao et al., 2020, "TinyBERT"), both averaged over tokens. No
    labels are needed.

    >>> Distil(hidden=0.5).kind
    'distil'
    """

    kind: Literal["distil"] = "distil"
    hidden: float = Field(default=1.0, ge=0, le=1_000, description="what the hidden states count beside predictions")

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `train`: the dense model is asked each time, too."""
        own = passes.anew()
        super().foretell(own)
        passes.add(own)
        passes.forward += own.forward + own.back

    def _loss(self, dense: Any, task: Any) -> Any:
        from headwise.prune.recovery.training import Towards

        return Towards(dense, self.hidden)


RECOVERIES: Mapping[str, type[BaseModel]] = {"none": NoRecovery, "finetune": FineTune, "distil": Distil}
