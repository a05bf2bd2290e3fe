"""Training: the Hugging Face Trainer on a cut model, stopped by the loss on texts held out."""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import same_way, still
from headwise.analysis.sites import find_sites
from headwise.prune.importance.wide_steps import wide_steps
from headwise.prune.recovery.adapters import low_rank
from headwise.prune.recovery.held_out import parted
from headwise.prune.tasks.divergence import divergence, independent

log = logging.getLogger("headwise")

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
        loss = torch.zeros(len(batch.texts), device=next(model.parameters()).device)
        if getattr(wanted, "logits", None) is not None:
            loss = loss + divergence(
                wanted.logits.float(), given.logits.float(), batch, independent=independent(self.dense)
            )
        states = list(zip(_states(wanted), _states(given), strict=True))
        for (stream, want), (_, got) in states if self.hidden else ():
            rows = _real(batch, stream, want)
            apart = (got.float() - want.float()).square().sum(-1).masked_fill(~rows, 0.0).sum(-1)
            size = want.float().square().sum(-1).masked_fill(~rows, 0.0).sum(-1).clamp(min=1e-12)
            loss = loss + self.hidden * apart / size / len(states)
        return loss


def _states(output: Any) -> list[tuple[str, Tensor]]:
    """Hidden states after every layer, each with the stream of tokens that it belongs to."""
    for name in ("hidden_states", "encoder_hidden_states"):
        found = getattr(output, name, None)
        if found is not None:
            decoded = getattr(output, "decoder_hidden_states", None) or ()
            return [*(("", state) for state in found), *(("decoder", state) for state in decoded)]
    return [("", output.last_hidden_state)]


def _real(batch: Batch, stream: str, states: Tensor) -> Tensor:
    """Which positions are real tokens; all, where the stream has none (patches) or another length."""
    tokens = batch.tokens.get(stream)
    if tokens is None or tokens.valid.shape != states.shape[:2]:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return tokens.valid.to(states.device)


def train(
    loss: Loss,
    model: nn.Module,
    texts: Iterable[Batch],
    seed: int,
    *,
    epochs: int,
    rate: float,
    patience: int,
    lora: int | None = None,
) -> dict[str, Any]:
    """Train a model in place; the weights of the epoch with the lowest held-out loss stay, the first ones included.

    The optimizer is made for the weights as they are now, so a model is cut before. Weights of half precision learn by
    float32 copies (`wide_steps`). What stands for a block without heads stays at zero. The model is trained as it runs,
    without dropout; texts held out see to it that it does not learn them by heart.

    Args:
        loss: a loss per text.
        model: what is trained; it ends in evaluation mode.
        texts: batches; one text in eight is held out, by content.
        seed: of the order of batches and of new weights.
        epochs: most passes over the texts.
        rate: highest learning rate.
        patience: epochs without a lower held-out loss before it stops.
        lora: rank of updates that are trained instead of all weights.

    Raises:
        BadInput: too few texts, or a loss that is not finite or has no gradient.
    """
    used, held = parted(texts)
    before = _mean(loss, model, held)
    with _state_of_random(), same_way(model), silent_outputs(model) as silent:
        torch.manual_seed(seed)
        with contextlib.ExitStack() as stack:
            if lora is not None:
                stack.enter_context(low_rank(model, lora, silent))
            keeper = _Keeper(loss, model, held, before, patience)
            _run(loss, model, used, keeper, seed, epochs, rate)
            keeper.put_back()
    model.eval()
    if keeper.best >= before:
        log.warning(
            "recover: no epoch lowered the loss on the %d texts held out, so the weights stay as they were; more texts, "
            "another rate or more patience may help",
            sum(len(batch.texts) for batch in held),
        )
    told = {"epochs": keeper.epochs, "loss": {"before": before, "after": keeper.best}, "path": keeper.path}
    counts = {"texts": sum(len(batch.texts) for batch in used), "held_out": sum(len(batch.texts) for batch in held)}
    return {**told, **counts, **({} if lora is None else {"lora": lora})}


def _run(loss: Loss, model: nn.Module, used: list[Batch], keeper: _Keeper, seed: int, epochs: int, rate: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=epochs, learning_rate=rate, lr_scheduler_type="linear",
            warmup_steps=max(1, len(used) * epochs // 10), per_device_train_batch_size=1, seed=seed, data_seed=seed,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
            use_cpu=next(model.parameters()).device.type == "cpu", dataloader_pin_memory=False, max_grad_norm=1.0,
        )  # fmt: skip
        # Of several GPUs it would draw a batch each, of which one is read; the model is on one, or spread by its own map.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        trainer = _ByTask(
            loss=loss, model=model, args=arguments, train_dataset=used, data_collator=_alone, callbacks=[keeper]
        )
        # It would print to the standard output, where the result belongs.
        trainer.remove_callback(PrinterCallback)
        trainer.train()


@contextlib.contextmanager
def silent_outputs(model: nn.Module) -> Iterator[list[str]]:
    """Hold still, while the block lasts, the output projections of blocks that lost every head; gives their paths.

    One head without output stands for such a block (a ghost): its columns are zero, yet the loss has a gradient
    there, and training would bring the block back to life.
    """
    paths = {site.output for site in find_sites(model).values() if not site.kept}
    held = []
    for path in paths:
        module, _, name = path.partition(":")
        parameter = getattr(model.get_submodule(module), name or "weight")
        held += [parameter] if parameter.requires_grad else []
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield sorted(path.partition(":")[0] for path in paths)
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


def _alone(batches: list[Batch]) -> dict[str, Batch]:
    """Batches are made already: the loader's batches hold one each."""
    return {"batch": batches[0]}


class _ByTask(Trainer):
    """A trainer whose loss is a function of model and batch."""

    def __init__(self, *, loss: Loss, **more: Any) -> None:
        super().__init__(**more)
        self._by_text = loss

    def create_optimizer(self, *model: Any) -> torch.optim.Optimizer:
        # The lowest release that is admitted hands no model.
        return wide_steps(super().create_optimizer(*model))

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # As it will run: after a repair that fits exactly, dropout would undo more than these few steps learn.
        model.eval()
        found = self._by_text(model, inputs["batch"]).mean()
        if not found.requires_grad:
            raise BadInput("recover: nothing that is trained changes the loss; choose another way, or another task")
        return (found, {}) if return_outputs else found


class _Keeper(TrainerCallback):
    """Keeps the best weights and ends the training when they stay the best."""

    def __init__(self, loss: Loss, model: nn.Module, held: list[Batch], before: float, patience: int) -> None:
        self.loss, self.model, self.held, self.patience = loss, model, held, patience
        self.best, self.epochs, self.worse, self.path = before, 0, 0, [before]
        self.weights = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self.epochs += 1
        now = _mean(self.loss, self.model, self.held)
        self.path.append(now)
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
