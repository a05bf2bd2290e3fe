"""What grows with the model is held once, and no longer than it is needed: copies and matrices are counted."""

import copy

import numpy as np
import pytest
import torch

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.sites import find_sites
from headwise.prune.carving import carve
from headwise.prune.checkpoint import load, native, save
from headwise.prune.compensation import repair
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance import priced, repair_cost
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.plan import Plan
from headwise.prune.proof import lightened, prove
from headwise.prune.proof.precision import at
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.surgery import cut
from headwise.prune.surgery.twin import twin
from tests.prune.importance_scene import batched, calibration, flat, made


@pytest.fixture
def factored(monkeypatch):
    """How often a block's matrices are made from nothing."""
    made_of = []
    original = repair_cost.RepairCost.__init__

    def counting(self, second, *rest):
        made_of.append(len(second))
        original(self, second, *rest)

    monkeypatch.setattr(repair_cost.RepairCost, "__init__", counting)
    return made_of


def selected(scores, model):
    return select(
        find_sites(model), scores.costs, Budget(heads=3), keep=Keep(minimum_per_site=1), score="reconstruction"
    )


@pytest.mark.parametrize("room", [priced.HELD, 1])
def test_ranks_selection_and_reasons_take_one_inverse_a_block(factored, monkeypatch, room):
    model = made("bert")
    plenty = Reconstruction().score(calibration(model))
    wanted = selected(plenty, model)
    factored.clear()
    monkeypatch.setattr(
        priced.Shelf, "__init__", lambda self: self.__dict__.update(room=room, _there=priced.OrderedDict())
    )
    scores = Reconstruction().score(calibration(model))
    found = selected(scores, model)
    assert len(factored) == len(find_sites(model)), "prices are worked out once, whoever asks"
    assert (found.remove, found.reasons) == (wanted.remove, wanted.reasons)
    np.testing.assert_array_equal(flat(scores), flat(plenty))
    assert len(scores.costs._shelf._there) == 1 or room > 1, "where they do not fit, one block's are kept"


def test_matrices_that_were_let_go_are_made_again_to_the_same_bits():
    model = made("bert")
    costs = Reconstruction().score(calibration(model)).costs
    block = next(iter(priced_blocks(model)))
    state = costs.start(block)
    for unit in ((0,), (2,)):
        state.remove(unit)
    costs._known.clear()
    costs._shelf = priced.Shelf(room=1)
    again = costs.start(block)
    for unit in ((0,), (2,)):
        again.remove(unit)
    np.testing.assert_array_equal(again.costs([(1,), (3,)]), state.costs([(1,), (3,)]))


def priced_blocks(model):
    from headwise.prune.selection import blocks_of

    return blocks_of(find_sites(model)).values()


def test_directions_alone_take_no_weighted_moments_and_are_let_go_once_decided():
    context = calibration(made("bert"))
    Reconstruction().score(context)
    backward = context._passes["outputs"]
    assert backward.slopes
    assert not backward.fit
    assert not backward.held
    assert context._passes["none"].fit
    context.decided()
    assert not backward.slopes
    assert context.gradients(slopes=True, loss="outputs").slopes, "and are had again where they are wanted after all"


def test_weighted_moments_and_directions_come_from_one_pass():
    context = calibration(made("bert"))
    seen = []
    original = context.model.forward
    context.model.forward = lambda *args, **named: (seen.append(1), original(*args, **named))[1]
    Reconstruction(weight="gradient").score(context)
    once = len(seen)
    assert once == len(list(context.batches)) + 1, "one batch shows what the outputs are"
    Reconstruction(weight="gradient").score(context)
    assert len(seen) == once


def storages(model):
    return {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "albert"])
def test_a_cut_twin_holds_attention_alone_and_neither_shows_in_the_other(name):
    model = made(name)
    sites = find_sites(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    dense = storages(model)
    remove = {name: [0, 1] for name in (sites if name == "albert" else ["0"])}
    with given_back(model, sites), torch.no_grad():
        for path in {site.output for site in sites.values()}:
            model.get_submodule(path).weight.mul_(2)
        smaller = cut(twin(model, sites.values()), remove)
        repaired = cut(copy.deepcopy(model), remove)
    anew = sum(size for place, size in storages(smaller).items() if place not in dense)
    owned = {
        id(p): p.nbytes
        for s in sites.values()
        for m in (s.module, s.output)
        for p in model.get_submodule(m).parameters()
    }
    assert 0 < anew < sum(owned.values()) < sum(dense.values())
    for (key, one), other in zip(smaller.state_dict().items(), repaired.state_dict().values(), strict=True):
        assert torch.equal(one, other), key
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_a_model_that_somebody_goes_on_using_and_one_that_is_trained_share_nothing(tmp_path, monkeypatch):
    copied = []
    monkeypatch.setattr("headwise.prune.carving.twin", lambda *given: copied.append(1) or twin(*given))
    model = made("bert")
    context = calibration(model)
    plan = Plan(remove={"0": [0]})
    for recovers, apart, shares in (({}, False, 1), ({}, True, 0), ({"recover": {"kind": "finetune"}}, False, 0)):
        copied.clear()
        recipe = Recipe.model_validate(
            {"schema": 1, "score": {"kind": "random"}, "compensate": {"kind": "none"}, **recovers}
        )
        carve(recipe, context, plan, Corpus([]), None, {"max_length": None}, lambda _: {"passed": True}, apart=apart)
        assert len(copied) == shares


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "albert"])
def test_layer_by_layer_a_model_in_another_precision_gives_the_same_and_holds_one_layer_twice(name):
    model = made(name, torch.bfloat16)
    inputs = batched(4)[0].inputs
    before = {key: value.data_ptr() for key, value in model.state_dict().items()}
    with at(torch.float32, model), torch.no_grad():
        whole = model(**inputs).logits
    most = []

    def count(*_):
        most.append(sum(p.numel() for p in model.parameters() if p.dtype == torch.float32))

    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    handles = [layer.register_forward_pre_hook(count) for layer in layers]
    with at(torch.float32, model, at_once=0), torch.no_grad():
        outside = sum(p.numel() for p in model.parameters() if p.dtype == torch.float32)
        found = model(**inputs).logits
    for handle in handles:
        handle.remove()
    assert torch.equal(found, whole)
    assert len(most) >= 1
    assert max(most) == outside + max(sum(p.numel() for p in layer.parameters()) for layer in layers)
    assert {key: value.data_ptr() for key, value in model.state_dict().items()} == before
    layers[0].register_forward_pre_hook(lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError), at(torch.float32, model, at_once=0):
        model(**inputs)
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


def test_the_proof_of_a_large_model_goes_layer_by_layer_and_says_the_same(monkeypatch):
    model = made("bert", torch.bfloat16)
    smaller = cut(copy.deepcopy(model), {"0": [1]})
    inputs = [batch.inputs for batch in batched(4)]
    wanted = prove(model, smaller, {"0": [1]}, inputs)
    monkeypatch.setattr("headwise.prune.proof.AT_ONCE", 0)
    assert prove(model, smaller, {"0": [1]}, inputs) == wanted
    assert wanted["passed"]
    with torch.no_grad():
        smaller.get_submodule(find_sites(smaller)["0"].output).weight[0] += 1
    assert not prove(model, smaller, {"0": [1]}, inputs)["passed"]


def test_layers_whose_weights_are_read_from_outside_are_proven_whole(monkeypatch):
    model = made("bert", torch.bfloat16)
    tried = []
    monkeypatch.setattr("headwise.prune.proof.AT_ONCE", 0)
    original = model.forward

    def forward(**inputs):
        weight, outside = model.bert.encoder.layer[0].attention.output.dense.weight, model.classifier.weight
        tried.append((weight.dtype, outside.dtype))
        torch.nn.functional.linear(outside, weight)
        return original(**inputs)

    model.forward = forward
    smaller = cut(copy.deepcopy(made("bert", torch.bfloat16)), {"0": [1]})
    found = prove(model, smaller, {"0": [1]}, [batched(4)[0].inputs])
    assert found["passed"]
    full = torch.float32
    assert tried[:2] == [(torch.bfloat16, full), (full, full)], "layer by layer first, then whole"


def test_what_proves_is_no_more_than_fits(monkeypatch):
    batch = batched(4)[0]
    sites = find_sites(made("bert")).values()
    assert lightened(batch, sites) is batch
    a_token = 12 * sum(site.heads * site.head_dim for site in sites)
    monkeypatch.setattr("headwise.prune.proof.MOST_SEEN", 20 * a_token)
    fewer = lightened(batch, sites)
    assert len(fewer.texts) == 20 // batch.inputs["input_ids"].shape[1]
    assert fewer.inputs["input_ids"].shape[0] == len(fewer.texts)


def test_whether_a_stock_configuration_says_the_shape_is_tried_with_the_weights_that_are_there(tmp_path):
    model = cut(made("llama", torch.float32), {name: [0, 1] for name in find_sites(made("llama"))})
    stock = native._stock(model)
    assert {one.data_ptr() for one in stock.parameters()} == {one.data_ptr() for one in model.parameters()}
    save(model, tmp_path / "out", form="native", max_shard_size="20KB")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1


def test_checkpoints_are_written_in_shards_and_read_back(tmp_path):
    model = cut(made("bert", torch.float32), {"0": [1]})
    save(model, tmp_path / "out", max_shard_size="20KB")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    again = load(tmp_path / "out")
    for (key, one), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other), key


def test_the_error_without_repair_is_told_from_the_removed_columns_alone():
    rng = np.random.default_rng(0)
    sample, weight, gone = rng.normal(size=(50, 6)), rng.normal(size=(3, 6)), np.array([1, 4])
    second = sample.T @ sample / 50
    size = repair.squared(weight, second)
    whole = repair.relative_error(weight, weight, gone, np.zeros(3), second, sample.mean(0))
    assert repair.unrepaired(weight, gone, second, size) == pytest.approx(whole, rel=1e-12)
    assert whole == pytest.approx(
        repair.relative_error(weight, weight, gone, np.zeros(3), second, sample.mean(0), size)
    )
