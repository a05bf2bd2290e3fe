"""Training after the cut: it helps, it never makes things worse, it touches nothing else."""

import contextlib
import copy
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.identity import weights_hash
from headwise.analysis.sites import find_sites
from headwise.prune import pipeline
from headwise.prune.checkpoint import load, save
from headwise.prune.importance.passes import Passes
from headwise.prune.recipe import Recipe
from headwise.prune.recovery import RECOVERIES, Distil, FineTune, NoRecovery
from headwise.prune.recovery.held_out import parted
from headwise.prune.recovery.trained import FILE, trained
from headwise.prune.recovery.training import Towards
from headwise.prune.surgery import cut
from tests.prune import tiny_run

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
REMOVE = {"0": [0, 1], "1": [2]}


def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=50, initializer_range=0.3, num_labels=2, **SIZES)).eval()


def batched(count=20, size=8):
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


@pytest.mark.parametrize("method", [FineTune(epochs=3, rate=2e-3), Distil(epochs=3, rate=2e-3)])
def test_training_a_cut_model_lowers_the_held_out_loss_and_leaves_the_dense_one(method, capsys):
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), REMOVE)
    before, shapes = state(dense), {name: value.shape for name, value in state(smaller).items()}
    random = torch.get_rng_state()
    report = method.train(dense, smaller, Labels(), batched(), seed=0)
    assert capsys.readouterr().out == ""
    assert report["kind"] == method.kind
    assert report["loss"]["after"] < report["loss"]["before"]
    assert report["held_out"] + report["texts"] == 160
    assert report["path"][0] == report["loss"]["before"]
    assert min(report["path"]) == report["loss"]["after"]
    assert 1 <= report["epochs"] <= 3
    assert all(torch.equal(value, before[name]) for name, value in state(dense).items())
    assert {name: value.shape for name, value in state(smaller).items()} == shapes
    assert [site.kept for site in find_sites(smaller).values()] == [(2, 3), (0, 1, 3)]
    assert not smaller.training
    assert torch.equal(random, torch.get_rng_state())
    loss = Labels().losses if method.kind == "finetune" else Towards(dense, method.hidden)
    with torch.no_grad():
        again = float(torch.cat([loss(smaller, batch) for batch in parted(batched())[1]]).mean())
    assert again == pytest.approx(report["loss"]["after"], rel=1e-5), "the weights of the best epoch are there"


@pytest.mark.parametrize("method", [FineTune(epochs=2), Distil(epochs=3, patience=3), NoRecovery()], ids=str)
def test_the_passes_of_a_training_are_foretold(method):
    """Of 160 texts about one in eight is held out."""
    dense, seen = classifier(), []
    smaller = cut(copy.deepcopy(dense), REMOVE)
    for model in (dense, smaller):
        model.register_forward_pre_hook(
            lambda model, _, inputs: seen.append(
                (len(inputs["input_ids"]) / 160, model.training, torch.is_grad_enabled())
            ),
            with_kwargs=True,
        )
    method.train(dense, smaller, Labels(), batched(), seed=0)
    passes = Passes(find_sites(dense), texts=160, batches=20, scored=True)
    method.foretell(passes)
    back = sum(part for part, _, learning in seen if learning)
    assert back == pytest.approx(passes.back, abs=0.15 * method.epochs if passes.back else 0)
    assert sum(part for part, *_ in seen) - back == pytest.approx(passes.forward, rel=0.2)


def test_the_same_seed_trains_the_same():
    dense = classifier()
    both = [cut(copy.deepcopy(dense), REMOVE) for _ in range(2)]
    for smaller in both:
        FineTune(epochs=1, rate=1e-3).train(dense, smaller, Labels(), batched(), seed=3)
    first, second = map(state, both)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_does_not_help_is_undone_and_ends_early(caplog):
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
    assert "no epoch lowered the loss" in caplog.text
    assert all(torch.equal(value, before[name]) for name, value in state(smaller).items())


def test_a_model_is_at_no_distance_from_itself():
    model, batch = classifier(), batched(1)[0]
    assert Towards(model, 1.0)(copy.deepcopy(model), batch).abs().max() < 1e-6
    far = cut(copy.deepcopy(model), REMOVE)
    assert (Towards(model, 1.0)(far, batch) > 1e-4).all()
    assert (Towards(model, 1.0)(far, batch) > Towards(model, 0.0)(far, batch)).all()


def test_the_same_texts_are_held_out_whatever_the_batches():
    def ids(batches):
        return sorted(text.id for batch in batches for text in batch.texts)

    few, many = parted(batched(20, 8)), parted(batched(1, 160))
    assert [ids(part) for part in few] == [ids(part) for part in many]
    assert set(ids(few[0])).isdisjoint(ids(few[1]))
    for batch in (*few[0], *few[1]):
        assert [str(row.tolist()) for row in batch.inputs["input_ids"]] == [text.text for text in batch.texts]
        assert batch.tokens[""].ids.equal(batch.inputs["input_ids"])


def test_too_few_texts_are_refused():
    dense = classifier()
    one = next(batch for batch in parted(batched())[0] if len(batch.texts) > 1)
    with pytest.raises(BadInput, match="leave none to hold out"):
        FineTune().train(dense, cut(copy.deepcopy(dense), REMOVE), Labels(), [one], seed=0)
    with pytest.raises(BadInput, match="leave none to train on"):
        FineTune().train(dense, cut(copy.deepcopy(dense), REMOVE), Labels(), parted(batched())[1], seed=0)


EMPTY = {"0": [0, 1, 2, 3], "1": [2]}


@pytest.mark.parametrize("lora", [None, 2])
def test_a_block_without_heads_stays_silent(lora):
    pytest.importorskip("peft") if lora else None
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), EMPTY)
    output = smaller.bert.encoder.layer[0].attention.output.dense
    report = FineTune(epochs=2, rate=5e-3 if lora else 2e-3, lora=lora).train(
        dense, smaller, Labels(), batched(), seed=0
    )
    assert report["loss"]["after"] < report["loss"]["before"], "else the weights are those of before"
    assert not output.weight.any()
    assert output.weight.requires_grad
    assert find_sites(smaller)["0"].kept == ()


def test_without_holding_it_still_an_empty_block_would_come_back(monkeypatch):
    monkeypatch.setattr("headwise.prune.recovery.training.silent_outputs", lambda _: contextlib.nullcontext([]))
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), EMPTY)
    FineTune(epochs=1, rate=2e-3).train(dense, smaller, Labels(), batched(), seed=0)
    assert smaller.bert.encoder.layer[0].attention.output.dense.weight.any()


@pytest.mark.parametrize("method", [FineTune(epochs=2, rate=2e-2, lora=4), Distil(epochs=2, rate=2e-2, lora=4)])
def test_low_rank_updates_are_merged_and_the_model_is_what_it_was(method, tmp_path):
    pytest.importorskip("peft")
    dense = classifier()
    smaller = cut(copy.deepcopy(dense), REMOVE)
    smaller.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    before, kinds = state(smaller), [type(module) for module in smaller.modules()]
    flags = [parameter.requires_grad for parameter in smaller.parameters()]
    report = method.train(dense, smaller, Labels(), batched(), seed=0)
    assert report["lora"] == 4
    assert report["loss"]["after"] < report["loss"]["before"]
    after = state(smaller)
    assert [type(module) for module in smaller.modules()] == kinds
    assert [parameter.requires_grad for parameter in smaller.parameters()] == flags
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "bert.encoder.layer.0.attention.self.query.weight" in changed
    assert all(name.endswith("weight") and "LayerNorm" not in name for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-4) <= 4
    again = cut(copy.deepcopy(dense), REMOVE)
    method.train(dense, again, Labels(), batched(), seed=0)
    assert all(torch.equal(value, after[name]) for name, value in state(again).items())
    save(smaller, tmp_path / "model")
    assert all(torch.equal(value, after[name]) for name, value in state(load(tmp_path / "model")).items())


def test_low_rank_updates_without_their_library_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    dense = classifier()
    with pytest.raises(BadInput, match=r"headwise\[lora\]"):
        FineTune(lora=2).train(dense, cut(copy.deepcopy(dense), REMOVE), Labels(), batched(), seed=0)


def test_it_is_trained_as_it_runs_and_the_rate_is_told():
    """Without dropout: it would undo what a repair has just fitted."""
    dense, seen = classifier(), []

    class Watched(Labels):
        def losses(self, model, batch):
            seen.append(any(module.training for module in model.modules()))
            return super().losses(model, batch)

    rates = [
        FineTune(epochs=1, **more).train(dense, cut(copy.deepcopy(dense), REMOVE), Watched(), batched(4), seed=0)[
            "rate"
        ]
        for more in ({}, {"rate": 1e-4})
    ]
    assert rates == [2e-5, 1e-4]
    assert FineTune(lora=2)._how()["rate"] == 5e-4
    assert len(seen) > 8
    assert not any(seen)


def test_what_no_training_changes_is_refused():
    dense = classifier()
    constant = SimpleNamespace(losses=lambda model, batch: torch.zeros(len(batch.texts)))
    with pytest.raises(BadInput, match="nothing that is trained changes the loss"):
        FineTune().train(dense, cut(copy.deepcopy(dense), REMOVE), constant, batched(), seed=0)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"rate": 0.0}, {"patience": 0}, {"lora": 0}, {"rates": 1}])
@pytest.mark.parametrize("kind", ["finetune", "distil"])
def test_malformed_ways_are_refused(kind, wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(RECOVERIES[kind]).validate_python({"kind": kind, **wrong})


def test_recipes_take_every_way():
    for kind in RECOVERIES:
        text = f"schema: 1\nscore: {{kind: random}}\nrecover: {{kind: {kind}}}\n"
        assert Recipe.from_text(text).recover.kind == kind
    assert isinstance(Recipe.from_text("schema: 1\nscore: {kind: random}").recover, NoRecovery)


TRAINED = "recover={kind: finetune, epochs: 2, rate: 0.002}"


def made(tmp_path):
    tiny_run.checkpoint(tmp_path / "model")
    tiny_run.table(tmp_path / "texts.jsonl", rows=128)
    return Recipe.load("gradient", tiny_run.settings(tmp_path / "model", tmp_path / "texts.jsonl", TRAINED))


def test_a_resumed_run_does_not_train_again_what_was_trained(tmp_path, monkeypatch):
    recipe, hashes, speed, train = made(tmp_path), [], pipeline._speed, FineTune.train

    def interrupted(recipe, dense, smaller):
        """After the training; the first two runs end here."""
        hashes.append(weights_hash(smaller))
        if len(hashes) < 3:
            raise KeyboardInterrupt
        return speed(recipe, dense, smaller)

    def once(*args, **how):
        monkeypatch.setattr(FineTune, "train", lambda *_, **__: pytest.fail("trained again"))
        return train(*args, **how)

    monkeypatch.setattr(pipeline, "_speed", interrupted)
    monkeypatch.setattr(FineTune, "train", once)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, output_dir=tmp_path / "run")
    before = json.loads((tmp_path / "run.partial" / "recovery.json").read_text())
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, output_dir=tmp_path / "run", resume=True)
    done = pipeline.run(recipe, output_dir=tmp_path / "run", resume=True)
    told = json.loads((done.folder / "recovery.json").read_text())
    assert told == before
    assert told["loss"]["after"] < told["loss"]["before"], "else the weights are those of before"
    assert hashes[0] == hashes[1] == hashes[2] == weights_hash(load(done.folder / "checkpoint"))
    assert not list(done.folder.rglob(f"{FILE}*"))


def test_a_training_broken_off_in_the_middle_begins_anew_and_says_so(tmp_path, monkeypatch, caplog):
    recipe, train = made(tmp_path), FineTune.train

    def interrupted(*_, **__):
        monkeypatch.setattr(FineTune, "train", train)
        raise KeyboardInterrupt

    monkeypatch.setattr(FineTune, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, output_dir=tmp_path / "run")
    assert "begins at its first epoch if it is resumed" in caplog.text
    done = pipeline.run(recipe, output_dir=tmp_path / "run", resume=True)
    assert json.loads((done.folder / "recovery.json").read_text())["epochs"] == 2


def test_kept_weights_are_taken_for_the_model_alone_that_was_trained(tmp_path, caplog):
    file, calls = tmp_path / FILE, []

    def model(seed):
        torch.manual_seed(seed)
        made = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
        made["b"].weight = made["a"].weight
        return made

    def training(this):
        def train():
            calls.append(this)
            with torch.no_grad():
                this["a"].weight.add_(1.0)
            return {"loss": {"before": 2.0, "after": 0.1 + 0.2}, "text": "\u00e9"}

        return train

    first, second, other = model(0), model(0), model(1)
    told = trained(first, file, training(first))
    assert trained(second, file, training(second)) == told
    assert weights_hash(second) == weights_hash(first)
    assert second["a"].weight is second["b"].weight
    trained(other, file, training(other))
    assert calls == [first, other]
    assert "trained from another model than this one" in caplog.text
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadInput, match=r"trained\.safetensors is damaged .*delete it"):
        trained(model(1), file, training(other))
