"""Heads that hand on nearly the same everywhere: their moments about the mean are rounding, and all goes on."""

import numpy as np
import pytest
import torch

from headwise.analysis.sites import find_sites
from headwise.prune.compensation.pairs import Pairs
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.repair import refitted
from headwise.prune.compensation.sequential import Sequential
from headwise.prune.deciding.stability import chosen_again
from headwise.prune.importance import repair_cost
from headwise.prune.importance.moments import Moments
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.importance.repair_cost import RepairCost, factored, ridged
from tests.prune.importance_scene import batched, calibration, made


def nearly_constant(width=16, mean=100.0):
    """Moments of contexts that differ in the seventh digit, or in none that is kept, as float32 sums them."""
    draw = torch.Generator().manual_seed(0)
    contexts = mean + 1e-4 * torch.randn(300, width, generator=draw)
    moments = Moments.zeros(width)
    for rows in contexts.split(30):
        moments.add(rows)
    return moments.matrix(centred=True)


def test_moments_that_are_rounding_are_factored_with_as_much_ridge_as_it_takes():
    second = nearly_constant()
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(ridged(second, 1e-2))
    for lower in (False, True):
        factor, where = factored(second, 1e-2, lower=lower)
        assert (where, np.isfinite(factor).all()) == (lower, True)
    new = refitted(np.ones((3, 16)), second, np.array([0, 1]))
    costs = RepairCost(second, np.eye(16), {0: np.arange(8), 1: np.arange(8, 16)}).costs([(0,), (1,)])
    assert np.isfinite(new).all()
    assert np.isfinite(costs).all()


def test_moments_whose_diagonal_is_below_zero_are_factored_too(monkeypatch):
    second = nearly_constant(mean=3e4)
    assert np.trace(second) < -1
    ridges = []

    def counted(moment, ridge):
        ridges.append(ridge)
        return ridged(moment, ridge) if len(ridges) < 20 else pytest.fail("there is no end")

    monkeypatch.setattr(repair_cost, "ridged", counted)
    assert np.isfinite(factored(second, 1e-2)[0]).all()


def test_what_is_positive_is_factored_as_it_was():
    second = np.cov(np.random.default_rng(0).normal(size=(6, 40)))
    np.testing.assert_array_equal(np.triu(factored(second, 0.1)[0]), np.linalg.cholesky(ridged(second, 0.1)).T)
    kept = np.array([0, 2, 5])
    np.testing.assert_allclose(
        np.triu(factored(second, 0.1, kept)[0]), np.linalg.cholesky(ridged(second, 0.1)[np.ix_(kept, kept)]).T
    )


def test_a_refit_in_order_of_nearly_constant_contexts_is_finite():
    pairs, draw = Pairs.zeros(3, 16), torch.Generator().manual_seed(0)
    seen = 100 + 1e-4 * torch.randn(300, 16, generator=draw)
    pairs.add(seen, torch.randn(300, 3, generator=draw), torch.ones(300, 3))
    change, moved = pairs.solve(np.array([0]), 1e-2, with_bias=True)
    assert np.isfinite(change).all()
    assert np.isfinite(moved).all()


def test_a_model_whose_values_are_nearly_constant_is_scored_and_repaired():
    model = made("bert", torch.float32)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.value.weight.mul_(1e-5)
            layer.attention.self.value.bias.fill_(100.0)
    found = calibration(model, batched(4) * 2)
    scores = Reconstruction(weight="none").score(found)
    again = chosen_again(scores, find_sites(model), lambda costs: {"0": [0], "1": [2]}, 8)
    assert np.isfinite([value for values in scores.values() for value in values]).all()
    assert again["times"] in (0, 6)
    for repair in (Reconstruct(values="keep", correct="outputs"), Sequential()):
        repair.repair(found, {"0": [0], "1": [2, 3]})
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
