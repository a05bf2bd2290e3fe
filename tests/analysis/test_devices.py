"""Models that accelerate has spread or put out: the same numbers, and the model as it was."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from headwise.analysis.analyze import analyze
from headwise.analysis.capture import capture
from headwise.analysis.capture.hooks import Hooks
from headwise.analysis.corpus.batching import batches
from headwise.analysis.devices import brought_in, exact, home
from headwise.analysis.gates import gated
from headwise.analysis.identity import weights_hash
from headwise.analysis.similarity import MEASURES, Replaceability
from headwise.analysis.sites import find_sites
from headwise.analysis.statistics import Statistics

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)

SPREAD = {"embeddings": "cpu", "encoder.layer.0": "cpu", "encoder.layer.1": "disk", "pooler": "cpu"}
ALL_OUT = {"embeddings": "disk", "encoder": "disk", "pooler": "disk"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    planted.planted_model().save_pretrained(folder)
    return folder


def spread(folder, places, out):
    model = AutoModel.from_pretrained(folder, device_map=places, offload_folder=out)
    assert any(parameter.is_meta for parameter in model.parameters())
    model.encoder.layer[1].attention.self.query.weight.requires_grad_(False)
    model.encoder.layer[1].train()
    return model


def state(model):
    """All that looking must not change: hooks, accelerate's own ones, where weights are, flags, kernel."""
    modules = {
        name: (dict(m._forward_hooks), dict(m._forward_pre_hooks), m.forward, getattr(m, "_hf_hook", None), m.training)
        for name, m in model.named_modules()
    }
    weights = {name: (p.device, p.requires_grad) for name, p in model.named_parameters()}
    return modules, weights, model.config._attn_implementation


@pytest.mark.parametrize("places", [SPREAD, ALL_OUT], ids=["one block out", "all out"])
@pytest.mark.parametrize("door", ["eager", "tiles"])
def test_a_spread_model_gives_the_numbers_of_the_whole_and_stays_as_it_was(folder, tmp_path, places, door):
    whole, model = planted.planted_model(), spread(folder, places, tmp_path)
    found = []
    for each in (whole, model):
        sites = find_sites(each)
        reducers = [Statistics(sites), *(make(sites) for make in MEASURES.values()), Replaceability(sites, each)]
        data = batches(planted.planted_corpus(8), planted.planted_tokenizer(), model=each)
        before = state(each)
        capture(each, data, reducers, sites=sites, door=door)
        assert state(each) == before
        found.append({name: array for reducer in reducers for name, array in reducer.result().items()})
        assert state(each) == before
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)
    assert weights_hash(model) == weights_hash(whole)


def test_a_pass_that_fails_leaves_a_spread_model_as_it_was(folder, tmp_path):
    model = spread(folder, SPREAD, tmp_path)
    before, sites = state(model), find_sites(model)
    reducer = Statistics(sites)
    reducer.update = lambda *_: 1 / 0
    data = batches(planted.planted_corpus(4), planted.planted_tokenizer(), model=model)
    with pytest.raises(ZeroDivisionError):
        capture(model, data, [reducer], sites=sites)
    assert state(model) == before


def test_gates_and_the_whole_analysis_on_a_spread_model(folder, tmp_path):
    whole, model = planted.planted_model(), spread(folder, SPREAD, tmp_path)
    how = {"measures": ["pearson", "replaceability"], "roles": ("previous",), "seed": 2}
    corpus, tokenizer = planted.planted_corpus(8), planted.planted_tokenizer()
    one, other = (analyze(each, tokenizer, corpus, **how) for each in (whole, model))
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(other.arrays[name], array, err_msg=name)
    (batch,) = batches(corpus, tokenizer, model=model)
    with torch.no_grad(), gated(whole, {"1": [0, 3]}), gated(model, {"1": [0, 3]}):
        wanted, got = (each.eval()(**batch.inputs).last_hidden_state for each in (whole, model))
    assert torch.equal(wanted, got)


def test_what_is_seen_is_brought_to_where_the_model_begins():
    model = planted.planted_model()
    data = batches(planted.planted_corpus(2), planted.planted_tokenizer(), model=model)
    sites = find_sites(model)
    with Hooks(model, sites, frozenset({"contexts"})) as hooks:
        (batch,) = data
        model(**batch.inputs)
        # No second device here: weightless tensors show where things go.
        hooks.home = torch.device("meta")
        (seen,) = hooks.look(batch)
    assert {one.context.device.type for one in seen.values()} == {"meta"}


def test_the_first_device_that_computes_is_where_inputs_go():
    model = torch.nn.Linear(1, 1)
    assert home(model) == torch.device("cpu")
    model.hf_device_map = {"a": "disk", "b": "cpu", "c": "cuda:1", "d": "cuda:0"}
    assert home(model) == torch.device("cuda:1")
    model.hf_device_map = {"a": "disk", "b": "cpu"}
    assert home(model) == torch.device("cpu")
    assert home(torch.nn.Identity()) == torch.device("cpu")
    assert [exact(torch.device(name)).type for name in ("mps", "cuda", "cpu")] == ["cpu", "cuda", "cpu"]
    with brought_in(model):
        assert not model.weight.is_meta
