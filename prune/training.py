"""Training: the Hugging Face Trainer on a cut model, stopped by the loss on texts held out."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from headwise.analysis.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.still import still
from headwise.prune.importance.gradients import HELD_OUT

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class Towards:
    """A loss per text: how far a model is from the dense one.

    Attributes:
        dense: the model to be like.
        hidden: what hidden states count beside predictions.
    """

    dense: nn.Module
    hidden: float

    def __call__(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Divergence of predictions plus relative squared distance of hidden states, shape [batch]."""
        with torch.no_grad(), still(self.dense):
            wanted = self.dense(**batch.inputs, output_hidden_states=True)
        given = model(**batch.inputs, output_hidden_states=True)
        valid = batch.tokens[""].valid
        loss = torch.zeros(len(batch.texts), device=next(model.parameters()).device)
        if getattr(wanted, "logits", None) is not None:
            loss = loss + _divergence(wanted.logits.float(), given.logits.float(), valid)
        states = list(zip(_states(wanted), _states(given), strict=True))
        for want, got in states if self.hidden else ():
            rows = valid.to(want.device) if want.shape[:2] == valid.shape else want.new_ones(want.shape[:2]).bool()
            apart = ((got.float() - want.float()).square().sum(-1) * rows).sum(-1)
            size = (want.float().square().sum(-1) * rows).sum(-1).clamp(min=1e-12)
            loss = loss + self.hidden * apart / size / len(states)
        return loss


def _states(output: Any) -> list[Tensor]:
    for name in ("hidden_states", "encoder_hidden_states"):
        found = getattr(output, name, None)
        if found is not None:
            return [*found, *(getattr(output, "decoder_hidden_states", None) or ())]
    return [output.last_hidden_state]


def _divergence(wanted: Tensor, given: Tensor, valid: Tensor) -> Float[Tensor, " batch"]:
    """KL(dense || cut) of a text, averaged over its tokens where there is a prediction for each."""
    log_p, log_q = wanted.log_softmax(-1), given.log_softmax(-1)
    each = (log_p.exp() * (log_p - log_q)).sum(-1)
    if each.ndim == 1:
        return each
    rows = valid.to(each.device) if each.shape == valid.shape else torch.ones_like(each, dtype=torch.bool)
    return (each * rows).sum(-1) / rows.sum(-1).clamp(min=1)


def train(
    loss: Loss, model: nn.Module, texts: Iterable[Batch], seed: int, *, epochs: int, rate: float, patience: int
) -> dict[str, Any]:
    """Train a model in place; the weights of the epoch with the lowest held-out loss stay, the first ones included.

    Args:
        loss: a loss per text.
        model: what is trained; it ends in evaluation mode.
        texts: batches; those of every eighth place are held out.
        seed: of the order of batches and of dropout.
        epochs: most passes over the texts.
        rate: highest learning rate.
        patience: epochs without a lower held-out loss before it stops.

    Raises:
        BadInput: fewer than two batches, or a loss that is not finite.
    """
    batches = list(texts)
    held = batches[::HELD_OUT]
    used = [batch for index, batch in enumerate(batches) if index % HELD_OUT]
    if not used:
        raise BadInput(
            f"recover: {len(batches)} batch of texts leaves nothing to train on beside the held-out ones; give more "
            "calibration texts, or a smaller data.batch_size"
        )
    before = _mean(loss, model, held)
    keeper = _Keeper(loss, model, held, before, patience)
    with tempfile.TemporaryDirectory() as folder, _state_of_random():
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=epochs, learning_rate=rate, lr_scheduler_type="linear",
            warmup_steps=max(1, len(used) * epochs // 10), per_device_train_batch_size=1, seed=seed, data_seed=seed,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
            use_cpu=next(model.parameters()).device.type == "cpu", dataloader_pin_memory=False, max_grad_norm=1.0,
        )  # fmt: skip
        trainer = _ByTask(
            loss=loss, model=model, args=arguments, train_dataset=used, data_collator=_alone, callbacks=[keeper]
        )
        trainer.train()
    keeper.put_back()
    model.eval()
    texts_held = sum(len(batch.texts) for batch in held)
    return {"epochs": keeper.epochs, "loss": {"before": before, "after": keeper.best}, "held_out": texts_held}


def _alone(batches: list[Batch]) -> dict[str, Batch]:
    """Batches are made already: the loader's batches hold one each."""
    return {"batch": batches[0]}


class _ByTask(Trainer):
    """A trainer whose loss is a function of model and batch."""

    def __init__(self, *, loss: Loss, **more: Any) -> None:
        super().__init__(**more)
        self._by_text = loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found = self._by_text(model, inputs["batch"]).mean()
        return (found, {}) if return_outputs else found


class _Keeper(TrainerCallback):
    """Keeps the best weights and ends the training when they stay the best."""

    def __init__(self, loss: Loss, model: nn.Module, held: list[Batch], before: float, patience: int) -> None:
        self.loss, self.model, self.held, self.patience = loss, model, held, patience
        self.best, self.epochs, self.worse = before, 0, 0
        self.weights = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self.epochs += 1
        now = _mean(self.loss, self.model, self.held)
        if now < self.best:
            self.best, self.weights, self.worse = now, self._copy(), 0
        else:
            self.worse += 1
            control.should_training_stop = self.worse >= self.patience
        return control

    def put_back(self) -> None:
        self.model.load_state_dict(self.weights)


def _mean(loss: Loss, model: nn.Module, held: list[Batch]) -> float:
    total, count = 0.0, 0
    with still(model), torch.no_grad():
        for batch in held:
            total += float(loss(model, batch).double().sum())
            count += len(batch.texts)
    if not math.isfinite(total):
        raise BadInput("recover: the loss on held-out texts is not finite; use float32, or a lower rate")
    return total / max(count, 1)


@contextlib.contextmanager
def _state_of_random() -> Any:
    """The trainer seeds every generator there is; afterwards they go on as if it had not."""
    import random

    import numpy as np

    mine, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(mine)
        np.random.set_state(numpys)  # noqa: NPY002
        torch.set_rng_state(torchs)
