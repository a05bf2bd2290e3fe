"""Apart: how far a model with closed gates is from where the task, or the dense model itself, wants it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import still
from headwise.prune.importance.calibration import Calibration, Loss
from headwise.prune.importance.outputs import put_out
from headwise.prune.importance.predictions import logits_of
from headwise.prune.tasks.divergence import divergence, independent
from headwise.prune.tasks.real_places import real_places

#: From a model to a loss per text of one batch, [batch].
Measure = Callable[[nn.Module], Tensor]


def losses_of(calibration: Calibration, loss: Loss, score: str) -> Callable[[Batch], Measure]:
    """How a score that closes gates judges a model: from a batch to what gives each text's loss.

    Without labels the dense model is asked when the batch is handed in, so that has to be done with all gates open.

    Args:
        calibration: the dense model, and the task that has the labels.
        loss: `labels`, or, without them, `predictions` or `outputs`.
        score: name of the score, for the message.

    Raises:
        BadInput: there is no task, or the model gives nothing to be apart from.
    """
    task, dense = calibration.task, calibration.model
    if loss == "labels":
        if task is None:
            raise BadInput(
                f"score {score} needs a task with a loss; choose a task, loss: predictions, or score magnitude or random"
            )
        return lambda batch: lambda model: task.losses(model, batch)
    ask = _predicted if loss == "predictions" else _put_out

    def asked(batch: Batch) -> Measure:
        with torch.no_grad(), still(dense):
            return ask(dense, batch)

    return asked


def _predicted(dense: nn.Module, batch: Batch) -> Measure:
    wanted, each_alone = _wide(logits_of(dense, batch)), independent(dense)
    return lambda model: divergence(wanted, _wide(logits_of(model, batch)), batch, independent=each_alone)


def _put_out(dense: nn.Module, batch: Batch) -> Measure:
    """Mean squared difference over outputs and real tokens; of scores, what moves all classes alike does not count."""
    wanted, scored = put_out(dense, batch)
    real = _real(batch, wanted)

    def measure(model: nn.Module) -> Float[Tensor, " batch"]:
        off = _wide(put_out(model, batch)[0]) - _wide(wanted)
        if scored and off.shape[-1] > 1:
            off = off - off.mean(-1, keepdim=True)
        each = off.square().mean(-1).flatten(1) if off.ndim > 2 else off.square().mean(-1, keepdim=True)
        # What stands at padding may be anything, infinity included.
        return each.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)

    return measure


def _real(batch: Batch, output: Tensor) -> Tensor:
    """Which places of the outputs are of real tokens, [batch, place]; all where they are not of tokens."""
    real = real_places(batch, output.shape[:-1])
    if real is not None:
        return real.to(output.device)
    places = max(output[0, ..., 0].numel(), 1)
    return torch.ones(len(output), places, dtype=torch.bool, device=output.device)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
