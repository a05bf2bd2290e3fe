"""Training after the cut: it helps, it never makes things worse, it touches nothing else."""

import copy

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from headwise.analysis.batching import Batch, Tokens
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.analysis.texts import Text
from headwise.prune.recipe import Recipe
from headwise.prune.recovery import RECOVERIES, Distil, FineTune, NoRecovery
from headwise.prune.surgery import cut
from headwise.prune.training import Towards

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
REMOVE = {"0": [0, 1], "1": [2]}


def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=50, initializer_range=0.3, num_labels=2, **SIZES)).eval()


def batched(count=8, size=8):
    """Texts whose label is whether their first token is below the middle: to be learned."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        ids = torch.tensor(rng.integers(1, 50, (size, 6)))
        valid, empty = torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(str(row.tolist()), label=int(row[0] < 25)) for row in ids]
        found.append(Batch({"input_ids": ids, "attention_mask": valid.long()}, texts, {"": tokens}))
    return found


class Labels:
    def losses(self, model, batch):
        right = torch.tensor([text.label for text in batch.texts])
        return torch.nn.functional.cross_entropy(model(**batch.inputs).logits, right, reduction="none")


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("method", [FineTune(epochs=4, rate=2e-3), Distil(epochs=4, rate=2e-3)])
def test_training_a_cut_model_lowers_the_held_out_loss_and_leaves_the_dense_one(method):
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), REMOVE)
    before, shapes = state(dense), {name: value.shape for name, value in state(smaller).items()}
    random = torch.get_rng_state()
    report = method.train(dense, smaller, Labels(), batched(), seed=0)
    assert report["kind"] == method.kind
    assert report["loss"]["after"] < report["loss"]["before"]
    assert report["held_out"] == 8
    assert 1 <= report["epochs"] <= 4
    assert all(torch.equal(value, before[name]) for name, value in state(dense).items())
    assert {name: value.shape for name, value in state(smaller).items()} == shapes
    assert [site.kept for site in find_sites(smaller).values()] == [(2, 3), (0, 1, 3)]
    assert not smaller.training
    assert torch.equal(random, torch.get_rng_state())
    loss = Labels().losses if method.kind == "finetune" else Towards(dense, method.hidden)
    with torch.no_grad():
        again = float(loss(smaller, batched()[0]).mean())
    assert again == pytest.approx(report["loss"]["after"], rel=1e-5), "the weights of the best epoch are there"


def test_the_same_seed_trains_the_same():
    dense = classifier()
    both = [cut(copy.deepcopy(dense), REMOVE) for _ in range(2)]
    for smaller in both:
        FineTune(epochs=1, rate=1e-3).train(dense, smaller, Labels(), batched(), seed=3)
    first, second = map(state, both)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_does_not_help_is_undone_and_ends_early():
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), REMOVE)
    before = state(smaller)

    class Sums:
        """Nothing lowers this: it is what the weights are away from where they began."""

        def losses(self, model, batch):
            apart = sum((p - before[name]).abs().sum() for name, p in model.named_parameters())
            return apart + 0.0 * Labels().losses(model, batch)

    report = FineTune(epochs=9, rate=1e-3, patience=2).train(dense, smaller, Sums(), batched(), seed=0)
    assert report["epochs"] == 2
    assert report["loss"] == {"before": 0.0, "after": 0.0}
    assert all(torch.equal(value, before[name]) for name, value in state(smaller).items())


def test_a_model_is_at_no_distance_from_itself():
    model, batch = classifier(), batched(1)[0]
    assert Towards(model, 1.0)(copy.deepcopy(model), batch).abs().max() < 1e-6
    far = cut(copy.deepcopy(model), REMOVE)
    assert (Towards(model, 1.0)(far, batch) > 1e-4).all()
    assert (Towards(model, 1.0)(far, batch) > Towards(model, 0.0)(far, batch)).all()


def test_too_few_texts_are_refused():
    dense = classifier()
    with pytest.raises(BadInput, match="more calibration texts"):
        FineTune().train(dense, cut(copy.deepcopy(dense), REMOVE), Labels(), batched(1), seed=0)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"rate": 0.0}, {"patience": 0}, {"rates": 1}])
@pytest.mark.parametrize("kind", ["finetune", "distil"])
def test_malformed_ways_are_refused(kind, wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(RECOVERIES[kind]).validate_python({"kind": kind, **wrong})


def test_recipes_take_every_way():
    for kind in RECOVERIES:
        text = f"schema: 1\nscore: {{kind: random}}\nrecover: {{kind: {kind}}}\n"
        assert Recipe.from_text(text).recover.kind == kind
    assert isinstance(Recipe.from_text("schema: 1\nscore: {kind: random}").recover, NoRecovery)
