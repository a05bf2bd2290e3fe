from itertools import combinations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates import contexts, gated
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.compensation.bias import Bias
from headwise.prune.compensation.none import NoCompensation
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.repair import refitted, relative_error
from headwise.prune.compensation.sequential import Sequential
from headwise.prune.importance import Calibration
from headwise.prune.importance.repair_cost import ridged
from headwise.prune.surgery import cut

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def bert():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(vocab_size=50, initializer_range=0.3, **SIZES))


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50, initializer_range=0.3))


def llama():
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(vocab_size=50, num_key_value_heads=2, head_dim=8, initializer_range=0.3, **SIZES))


def albert():
    from transformers import AlbertConfig, AlbertModel

    return AlbertModel(AlbertConfig(vocab_size=50, embedding_size=16, initializer_range=0.3, **SIZES))


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "albert": albert}
REMOVE = {
    "bert": {"1": [0, 2]},
    "gpt2": {"0": [1], "1": [0, 1, 3]},
    "llama": {"1": [2, 3]},
    "albert": {"0": [1], "1": [1]},
}


def made(name):
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.2)
    return model


def batched(count=160, size=16, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count // size):
        lengths = rng.integers(3, 12, size)
        ids = torch.tensor(rng.integers(1, 50, (size, 12)))
        valid = torch.arange(12) < torch.tensor(lengths)[:, None]
        empty = torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(" ".join(map(str, row[:n].tolist()))) for row, n in zip(ids, lengths, strict=True)]
        found.append(Batch({"input_ids": ids, "attention_mask": valid.long()}, texts, {"": tokens}))
    return found


class Energy:
    """A loss with a different gradient at every token."""

    def losses(self, model, batch):
        states = model(**batch.inputs).last_hidden_state
        direction = torch.linspace(-1, 2, states.shape[-1], dtype=states.dtype)
        return ((states @ direction) * batch.tokens[""].valid).square().sum(1)


def calibration(model, batches=None):
    return Calibration(model, find_sites(model), batched() if batches is None else batches, Energy())


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def block_outputs(model, name, batches, silenced=None):
    """What the output projection gives for every valid token."""
    site, rows = find_sites(model)[name], []
    handle = model.get_submodule(site.output).register_forward_hook(lambda m, a, out: seen.append(out))
    for batch in batches:
        seen = []
        with torch.no_grad(), gated(model, silenced or {}):
            model(**batch.inputs)
        rows.append(seen[site.call][batch.tokens[""].valid])
    handle.remove()
    return torch.cat(rows).numpy()


def test_refit_equals_least_squares_for_every_subset():
    rng = np.random.default_rng(0)
    sample, weight = rng.normal(size=(90, 6)) @ rng.normal(size=(6, 6)) + 2, rng.normal(size=(4, 6))
    for size in range(1, 6):
        for gone in map(np.array, combinations(range(6), size)):
            kept = np.setdiff1d(np.arange(6), gone)
            plain = refitted(weight, sample.T @ sample / 90, gone, ridge=1e-12)
            fit = np.linalg.lstsq(sample[:, kept], sample @ weight.T, rcond=None)[0].T
            np.testing.assert_allclose(plain[:, kept], fit, rtol=1e-5, atol=1e-7)
            centred = refitted(weight, np.cov(sample.T, ddof=0), gone, ridge=1e-12)
            ones = np.hstack([sample[:, kept], np.ones((90, 1))])
            affine = np.linalg.lstsq(ones, sample @ weight.T, rcond=None)[0].T
            np.testing.assert_allclose(centred[:, kept], affine[:, :-1], rtol=1e-5, atol=1e-7)
            ridge = ridged(sample.T @ sample / 90, 0.1) - sample.T @ sample / 90
            stacked = np.vstack([sample[:, kept] / np.sqrt(90), np.sqrt(ridge)[np.ix_(kept, kept)]])
            target = np.vstack([sample[:, gone] @ weight[:, gone].T / np.sqrt(90), np.zeros((len(kept), 4))])
            drawn = weight[:, kept] + np.linalg.lstsq(stacked, target, rcond=None)[0].T
            found = refitted(weight, sample.T @ sample / 90, gone, ridge=0.1)[:, kept]
            np.testing.assert_allclose(found, drawn, rtol=1e-6, atol=1e-9)


def test_relative_error_is_that_of_the_outputs():
    rng = np.random.default_rng(1)
    sample, weight, new = rng.normal(1, 1, size=(70, 6)), rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    moved, gone = rng.normal(size=4), np.array([1, 4])
    kept = np.setdiff1d(np.arange(6), gone)
    wrong = sample @ weight.T - (sample[:, kept] @ new[:, kept].T + moved)
    expected = np.linalg.norm(wrong) / np.linalg.norm(sample @ weight.T)
    found = relative_error(weight, new, gone, moved, sample.T @ sample / 70, sample.mean(0))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["bias", "reconstruction"])
def test_the_reported_error_is_what_gating_measures_on_the_held_out_texts(name, kind):
    model, remove = made(name), REMOVE[name]
    batches = [batch for part in batched() for batch in singles(part)]
    held = [batch for batch in batches if int(batch.texts[0].id[:8], 16) % 8 == 0]
    last = list(remove)[-1] if name != "gpt2" else "0"  # the first repaired site: its inputs are still the dense ones
    dense = block_outputs(model, last, held)
    shift = output_bias(model, find_sites(model)[last])
    size = np.linalg.norm(dense - (0 if shift is None else shift.numpy()))
    before = np.linalg.norm(block_outputs(model, last, held, only(remove, last)) - dense)
    report = COMPENSATIONS[kind]().repair(calibration(model), only(remove, last))
    after = np.linalg.norm(block_outputs(model, last, held, only(remove, last)) - dense)
    assert report["measured_on"] == "held-out"
    if name == "albert":
        assert set(report["sites"]) == {"0", "1"}  # one projection serves both calls, errors are over both
        return
    assert set(report["sites"]) == {last}
    assert report["sites"][last]["error_before"] == pytest.approx(before / size, rel=1e-8)
    assert report["sites"][last]["error_after"] == pytest.approx(after / size, rel=1e-8)
    if kind == "reconstruction":
        assert after < 0.95 * before
    elif name == "llama":
        assert after == before, "no bias, nothing to move"


def only(remove, name):
    return remove if all(heads == remove[name] for heads in remove.values()) else {name: remove[name]}


def singles(batch):
    for row, text in enumerate(batch.texts):
        tokens, pick = batch.tokens[""], slice(row, row + 1)
        parts = (tokens.ids, tokens.valid, tokens.special, tokens.words, tokens.offsets)
        inputs = {key: value[pick] for key, value in batch.inputs.items()}
        yield Batch(inputs, [text], {"": Tokens(*(part[pick] for part in parts))})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weight", ["none", "gradient"])
def test_only_the_kept_columns_and_bias_of_sites_that_lost_heads_change(name, weight):
    model = made(name)
    before, sites = state(model), find_sites(model)
    weights = {n: output_weight(model, site).clone() for n, site in sites.items()}
    Reconstruct(weight=weight).repair(calibration(model), REMOVE[name])
    own = set()
    for site_name, heads in REMOVE[name].items():
        site = sites[site_name]
        own |= {f"{site.output}.weight", f"{site.output}.bias"}
        columns = np.isin(np.arange(32) // 8, heads)
        change = (output_weight(model, site) - weights[site_name]).abs().amax(0).numpy()
        assert (change[columns] == 0).all()
        assert (change[~columns] > 0).all()
    changed = {key for key, value in state(model).items() if not torch.equal(value, before[key])}
    assert changed == own & set(before)


@pytest.mark.parametrize("kind", COMPENSATIONS)
def test_nothing_lost_nothing_changed(kind):
    model = made("bert")
    before = state(model)
    assert COMPENSATIONS[kind]().repair(calibration(model), {})["sites"] == {}
    assert all(torch.equal(value, before[key]) for key, value in state(model).items())
    NoCompensation().repair(calibration(model), REMOVE["bert"])
    assert all(torch.equal(value, before[key]) for key, value in state(model).items())


def test_a_head_with_a_twin_is_replaced_without_error():
    model = made("bert")
    own = model.encoder.layer[0].attention.self
    for linear in (own.query, own.key, own.value):
        linear.weight.data[8:16] = linear.weight.data[:8]
        linear.bias.data[8:16] = linear.bias.data[:8]
    errors = Reconstruct(ridge=1e-9).repair(calibration(model), {"0": [1]})["sites"]["0"]
    assert errors["error_before"] > 0.1
    assert errors["error_after"] < 1e-6


def test_the_bias_takes_the_whole_of_a_constant_head():
    model = made("bert")
    own = model.encoder.layer[1].attention.self
    own.value.weight.data[16:24] = 0
    errors = Bias().repair(calibration(model), {"1": [2]})["sites"]["1"]
    assert errors["error_before"] > 1e-2
    assert errors["error_after"] < 1e-9


def test_an_emptied_site_keeps_its_mean():
    model = made("bert")
    site = find_sites(model)["1"]
    rows = []
    with torch.no_grad(), contexts(model, {"1": site}) as seen:
        for batch in batched():
            model(**batch.inputs)
            fit = torch.tensor([int(text.id[:8], 16) % 8 != 0 for text in batch.texts])
            rows.append(seen["1"].pop()[batch.tokens[""].valid & fit[:, None]])
    bias = output_bias(model, site).clone()
    Reconstruct().repair(calibration(model), {"1": [0, 1, 2, 3]})
    expected = bias + output_weight(model, site) @ torch.cat(rows).mean(0)
    np.testing.assert_allclose(output_bias(model, site), expected, rtol=1e-9)


def test_repair_does_not_depend_on_the_batches():
    found = []
    for batches in (batched(), [one for part in batched() for one in singles(part)]):
        model = made("bert")
        Reconstruct(weight="gradient").repair(calibration(model, batches), REMOVE["bert"])
        found.append(output_weight(model, find_sites(model)["1"]).numpy())
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-9)


def test_too_few_texts_to_hold_some_out_are_said():
    fit_only = [b for part in batched() for b in singles(part) if int(b.texts[0].id[:8], 16) % 8][:9]
    report = Reconstruct().repair(calibration(made("bert"), fit_only), REMOVE["bert"])
    assert report["measured_on"] == "fit"


def test_never_leaves_the_bias_alone():
    model = made("bert")
    bias = output_bias(model, find_sites(model)["1"]).clone()
    Reconstruct(bias="never").repair(calibration(model), REMOVE["bert"])
    assert torch.equal(output_bias(model, find_sites(model)["1"]), bias)


@pytest.mark.parametrize("wrong", [{"ridge": 0}, {"weight": "loss"}, {"bias": "always"}, {"x": 1}])
def test_malformed_methods_are_refused(wrong):
    with pytest.raises(ValidationError):
        Reconstruct(**wrong)


def test_bfloat16_models_are_repaired_in_their_own_type():
    model = made("bert").bfloat16()
    errors = Reconstruct().repair(calibration(model), REMOVE["bert"])["sites"]["1"]
    assert output_weight(model, find_sites(model)["1"]).dtype == torch.bfloat16
    assert errors["error_after"] < errors["error_before"]


def seen_by(model, name, batches, silenced=None):
    """Contexts of a site and the residual stream that entered its layer, for every valid token."""
    site, found, streams = find_sites(model)[name], [], []
    layer = model.get_submodule(site.module.partition(".self")[0].partition(".attn")[0].removesuffix(".attention"))
    for batch in batches:
        entered = []
        handle = layer.register_forward_pre_hook(
            lambda m, a, k, e=entered: e.append((*a, *k.values())[0]), with_kwargs=True
        )
        with torch.no_grad(), gated(model, silenced or {}), contexts(model, {name: site}) as seen:
            model(**batch.inputs)
        handle.remove()
        valid = batch.tokens[""].valid
        found.append(seen[name][site.call][valid])
        streams.append(entered[0][valid])
    return torch.cat(found).numpy(), torch.cat(streams).numpy()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("target", ["output", "stream"])
def test_sequential_equals_least_squares_on_the_inputs_that_pruned_sites_give(name, target):
    dense, model, remove = made(name), made(name), {"0": [1, 3], "1": [0]}
    batches = batched()
    for batch in batches:  # every text fits, none is held out: brute force then needs no split
        for index, text in enumerate(batch.texts):
            while int(text.id[:8], 16) % 8 == 0:
                text = Text(text.text + " .")
            batch.texts[index] = text
    report = Sequential(target=target, ridge=1e-12).repair(calibration(model, batches), remove)
    assert report["measured_on"] == "fit"
    for place in ("0", "1"):
        wanted, stream = seen_by(dense, place, batches)
        # What the site saw when its turn came: earlier sites repaired, later ones do not matter.
        given_, pruned_stream = seen_by(model, place, batches, remove)
        site = find_sites(dense)[place]
        aim = wanted @ output_weight(dense, site).numpy().T + output_bias(dense, site).numpy()
        if target == "stream":
            aim = aim + stream - pruned_stream
        rows = np.hstack([given_, np.ones((len(given_), 1))])
        best = rows @ np.linalg.lstsq(rows, aim, rcond=None)[0]
        got = given_ @ output_weight(model, site).numpy().T + output_bias(model, site).numpy()
        np.testing.assert_allclose(got, best, atol=1e-5)
        size = np.sqrt(((wanted @ output_weight(dense, site).numpy().T) ** 2).sum())
        assert report["sites"][place]["error_after"] == pytest.approx(
            np.sqrt(((aim - got) ** 2).sum()) / size, rel=1e-4
        )


@pytest.mark.parametrize("name", MODELS)
def test_sequential_leaves_what_comes_before_the_first_loss_and_gate_still_equals_cut(name):
    model, remove = made(name), {"1": [0, 1]} if name != "albert" else {"0": [1], "1": [1]}
    before, batch = state(model), batched(16)[0]
    report = Sequential().repair(calibration(model), remove)
    changed = {key for key, value in state(model).items() if not torch.equal(value, before[key])}
    outputs = {find_sites(model)[site].output for site in report["sites"]}
    assert changed
    assert all(key.rpartition(".")[0] in outputs for key in changed)
    if name != "albert":
        assert set(report["sites"]) == {"1"}
    assert all(errors["error_after"] < errors["error_before"] for errors in report["sites"].values())
    with torch.no_grad():
        with gated(model, remove):
            gate = model(**batch.inputs).last_hidden_state
        smaller = cut(model, remove)(**batch.inputs).last_hidden_state
    assert float((gate - smaller).abs().max()) < 1e-9


def test_sequential_gives_the_same_where_no_tensor_counts_what_is_written():
    mine, its = made("bert"), made("bert")
    Sequential().repair(calibration(mine), {"0": [1, 3]})
    with torch.inference_mode():
        Sequential().repair(calibration(its), {"0": [1, 3]})
    for name, weight in state(mine).items():
        np.testing.assert_allclose(weight, state(its)[name], rtol=1e-9, err_msg=name)


def test_sequential_refuses_projections_it_cannot_see():
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(vocab_size=50, **SIZES))
    sites = find_sites(model)
    hidden = {
        name: site.__class__(**{**site.__dict__, "output": site.output + ":weight"}) for name, site in sites.items()
    }
    with pytest.raises(ValueError, match="cannot be seen"):
        Sequential().repair(Calibration(model, hidden, batched(), Energy()), {"0": [1]})
