"""Half precision learns as float32 does, though its own numbers lie further apart than a step."""

import copy

import pytest
import torch
from transformers import TrainingArguments

from headwise.analysis.sites import find_sites
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.importance.wide_steps import wide_steps
from headwise.prune.recovery import Distil, FineTune
from headwise.prune.recovery import training as module
from headwise.prune.surgery import cut
from tests.prune import importance_scene
from tests.prune.test_recovery import REMOVE, batched, classifier, state


class Labels:
    def losses(self, model, batch):
        right = torch.tensor([text.label for text in batch.texts])
        return torch.nn.functional.cross_entropy(model(**batch.inputs).logits.float(), right, reduction="none")


def recovered(method, dtype, count=40):
    dense = classifier().to(dtype)
    smaller = cut(copy.deepcopy(dense), REMOVE)
    return method.train(dense, smaller, Labels(), batched(count), seed=0), smaller


@pytest.mark.parametrize("method", [FineTune(epochs=3, rate=1e-4), Distil(epochs=3, rate=1e-4)], ids=lambda m: m.kind)
def test_a_training_of_half_precision_gains_what_one_of_float32_does(method):
    wide, narrow = (recovered(method, dtype) for dtype in (torch.float32, torch.bfloat16))
    gains = [told["loss"]["before"] - told["loss"]["after"] for told, _ in (wide, narrow)]
    assert gains[0] > 0
    assert gains[1] > 0.8 * gains[0]
    assert {p.dtype for p in narrow[1].parameters()} == {torch.bfloat16}


def test_steps_in_full_precision_are_what_they_were():
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [torch.optim.Adam([weights[0]], lr=0.1), wide_steps(torch.optim.Adam([weights[1]], lr=0.1))]
    for weight, optimizer in zip(weights, optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    assert torch.equal(*weights)


def test_gates_train_free_weights_of_half_precision_too():
    """A step is a tenth of what tells most of these numbers apart."""
    model, moved = importance_scene.made("bert", torch.bfloat16), []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    class Watching(Labels):
        def losses(self, copied, batch):
            moved.append(sum(int((p != before[name]).sum()) for name, p in copied.named_parameters()))
            return super().losses(copied, batch)

    context = Calibration(model, find_sites(model), importance_scene.batched(), Watching(), seed=0)
    SCORES["gates"](steps=12, weights="free", weights_rate=2e-4).score(context)
    assert moved[0] == 0
    assert moved[-1] > 0.2 * sum(p.numel() for p in model.parameters())


def test_on_a_machine_with_several_gpus_every_text_is_trained_on(monkeypatch):
    """The trainer would draw a batch for each of them at a time, of which one was used."""
    alone = recovered(FineTune(epochs=1, rate=1e-3), torch.float32, count=12)[1]

    class Several(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            assert self.n_gpu <= 1
            self._n_gpu = 4

    monkeypatch.setattr(module, "TrainingArguments", Several)
    one, other = state(alone), state(recovered(FineTune(epochs=1, rate=1e-3), torch.float32, count=12)[1])
    assert all(torch.equal(one[name], other[name]) for name in one)
