"""Scaling the heads that stay: equal to numpy's least squares, and nothing else is touched."""

import numpy as np
import pytest
import torch

from headwise.analysis.gates import contexts, gated
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.scale import Scale, scalars
from headwise.prune.surgery import cut
from tests.prune.importance_scene import ROWS, batched, calibration, made


def brute(sample, weight, gone, width, with_bias, drawn=0.0):
    """Oracle: one column per kept head, its contribution to every output of every token; `drawn` is a ridge to 0."""
    heads = np.arange(sample.shape[1] // width)
    lost = np.unique(gone // width)
    kept = np.setdiff1d(heads, lost)
    parts = [sample[:, h * width :][:, :width] @ weight[:, h * width :][:, :width].T for h in heads]
    if with_bias:  # a free constant for every output, projected out
        parts = [part - part.mean(0) for part in parts]
    columns = np.stack([parts[h].ravel() for h in kept], 1)
    target = sum(parts[h] for h in lost).ravel()
    stacked = np.vstack([columns, np.sqrt(drawn) * np.eye(len(kept))])
    found = np.ones(len(heads))
    found[kept] += np.linalg.lstsq(stacked, np.concatenate([target, np.zeros(len(kept))]), rcond=None)[0]
    return found


@pytest.mark.parametrize("with_bias", [False, True])
def test_scalars_equal_least_squares_for_every_set_of_heads(with_bias):
    rng = np.random.default_rng(0)
    sample, weight = rng.normal(size=(60, 8)) @ rng.normal(size=(8, 8)) + 1, rng.normal(size=(5, 8))
    second = np.cov(sample.T, ddof=0) if with_bias else sample.T @ sample / 60
    for number in range(1, 15):
        gone = np.flatnonzero(np.repeat([number >> head & 1 for head in range(4)], 2))
        found = scalars(weight, second, gone, 2, 1e-12)
        np.testing.assert_allclose(found, brute(sample, weight, gone, 2, with_bias), rtol=1e-6, atol=1e-8)
        own = [np.trace(weight[:, h : h + 2] @ second[h : h + 2, h : h + 2] @ weight[:, h : h + 2].T)
               for h in range(0, 8, 2) if h not in gone]  # fmt: skip
        drawn = scalars(weight, second, gone, 2, 0.5)
        expected = brute(sample, weight, gone, 2, with_bias, 0.5 * np.mean(own) * 60)
        np.testing.assert_allclose(drawn, expected, rtol=1e-6, atol=1e-8)
    assert (scalars(weight, second, np.arange(8), 2, 1e-2) == 1).all(), "nothing left to scale"


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_model_is_scaled_head_by_head_and_gate_still_equals_cut(name):
    model, remove = made(name), {"1": [2, 3]}
    sites = find_sites(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weight = output_weight(model, sites["1"]).clone().numpy()
    rows, batches = [], batched(1)
    for batch in batches:
        with torch.no_grad(), contexts(model, {"1": sites["1"]}) as seen:
            model(**batch.inputs)
        if int(batch.texts[0].id[:8], 16) % 8:
            rows.append(seen["1"][0][batch.tokens[""].valid])
    sample, biased = torch.cat(rows).numpy(), output_bias(model, sites["1"]) is not None
    report = Scale(ridge=1e-12).repair(calibration(model, batches), remove)
    assert len(rows) < len(ROWS)
    assert report["kind"] == "scale"
    assert list(report["sites"]) == ["1"]
    expected = weight * np.repeat(brute(sample, weight, np.arange(16, 32), 8, biased), 8)
    np.testing.assert_allclose(output_weight(model, sites["1"]).numpy(), expected, rtol=1e-5, atol=1e-7)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {f"{sites['1'].output}.{part}" for part in (("weight", "bias") if biased else ("weight",))}
    with torch.no_grad():
        with gated(model, remove):
            gate = model(**batched()[0].inputs).logits
        smaller = cut(model, remove)(**batched()[0].inputs).logits
    assert float((gate - smaller).abs().max()) < 1e-9


def test_it_stands_between_bias_and_reconstruction():
    """Fewer freedoms cannot fit better: on the texts that fit, each step of the ladder is at least as close."""
    fit = [batch for batch in batched(1) if int(batch.texts[0].id[:8], 16) % 8]
    errors = {}
    for method in (Scale(ridge=1e-9), Reconstruct(ridge=1e-9)):
        found = method.repair(calibration(made("bert"), fit), {"0": [1]})
        assert found["measured_on"] == "fit"
        errors[method.kind] = found["sites"]["0"]["error_after"]
        errors["none"] = found["sites"]["0"]["error_before"]
    assert errors["reconstruction"] <= errors["scale"] < errors["none"]
