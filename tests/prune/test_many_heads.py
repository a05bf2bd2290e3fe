"""Many heads: what is done again and again grows no faster than the heads do."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.analysis.inference import intervals
from headwise.analysis.sites import Site
from headwise.prune.compensation.values import _Fitted, _Read
from headwise.prune.deciding import searching
from headwise.prune.deciding.stability import stability
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.priced import Shelf
from headwise.prune.importance.redundancy import Redundancy, clusters_lost, distances_lost, tree_of
from headwise.prune.importance.repair_cost import RepairCost
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores
from headwise.prune.selection import Budget
from tests.prune.importance_scene import evidence_of, made
from tests.prune.test_searching import searched


class Matrices(RepairCost):
    asked = 0

    def __init__(self):
        super().__init__(np.eye(1), np.eye(1), {})

    @property
    def bytes(self):
        Matrices.asked += 1
        return 8


def test_a_shelf_is_not_counted_through_for_every_price(monkeypatch):
    monkeypatch.setattr(Matrices, "asked", 0)
    shelf = Shelf(room=8 * 50)
    for index in range(200):
        shelf.get((str(index), ()), Matrices)
        shelf.get((str(index), ()), lambda: pytest.fail("it is there"))
    assert Matrices.asked <= 2 * 200
    assert isinstance(shelf._there, OrderedDict)
    assert list(shelf._there) == [(str(index), ()) for index in range(150, 200)], "the last that fit are there"


def test_heads_are_clustered_once_however_often_texts_are_drawn_again(monkeypatch):
    import scipy.cluster.hierarchy

    made_trees, linkage = [], scipy.cluster.hierarchy.linkage
    monkeypatch.setattr(scipy.cluster.hierarchy, "linkage", lambda *a, **k: made_trees.append(1) or linkage(*a, **k))
    model, rng = made("bert"), np.random.default_rng(0)
    alike = np.corrcoef(rng.normal(size=(8, 20)))
    values = {name: rng.random(4) for name in "01"}
    anew = Resampled("made up", np.ones(64), lambda weights: {n: v + weights[0] for n, v in values.items()})
    monkeypatch.setattr(Gradient, "score", lambda *_: Scores("gradient", values, resampled=anew))
    from headwise.analysis.sites import find_sites

    evidence = evidence_of(model, **{"similarity/pearson": alike})
    scores = Redundancy(matters="gradient").score(Calibration(model, find_sites(model), [], None, evidence))
    stability("redundancy", scores, scores.resampled, seed=0, resamples=50)
    assert len(made_trees) <= 2


@pytest.mark.parametrize("heads", [1, 2, 9])
def test_distances_are_those_of_one_merger_after_the_other(heads):
    rng = np.random.default_rng(heads)
    alike, matters = np.corrcoef(rng.normal(size=(heads, 30))).reshape(heads, heads), rng.integers(0, 4, heads) / 4.0
    found = distances_lost(tree_of(alike), matters)
    # Of every head the first merger of its cluster with one whose best matters more, of equals the first.
    clusters, expected = {index: [index] for index in range(heads)}, np.full(heads, np.nan)

    def rank(head):
        return (-matters[head], head)

    for step, (left, right, height, _) in enumerate(tree_of(alike)):
        sides = [clusters.pop(int(left)), clusters.pop(int(right))]
        loser = max((min(side, key=rank) for side in sides), key=rank)
        expected[loser] = height
        clusters[heads + step] = sides[0] + sides[1]
    expected[np.isnan(expected)] = 1 + np.nanmax([*expected, 0])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(clusters_lost(alike, matters)[0], expected)


def reads(heads, width=4, wide=32):
    torch.manual_seed(0)
    value = torch.nn.Linear(wide, heads * width)
    site = Site("0", "attn", "attn.o", heads, heads, width, kept=tuple(range(heads)))
    places = list(range(1, heads))
    weight = torch.randn(wide, heads * width, dtype=torch.float64)
    read = _Read(site, value, places, weight, torch.zeros(wide).double(), torch.eye(wide).double())
    rows = [slice(place * width, (place + 1) * width) for place in places]
    matrix, shift = value.weight.detach().double(), value.bias.detach().double()
    fitted = _Fitted(
        read, [weight[:, row].clone() for row in rows], [matrix[row] for row in rows],
        torch.stack([shift[row] for row in rows]), read.bias.clone(),
    )  # fmt: skip
    return read, fitted


def test_a_head_is_held_against_its_own_readings_alone():
    _, fitted = reads(heads=3)
    readings = torch.randn(500, 2, 32, dtype=torch.float64)
    own = torch.einsum("tif,idf->tid", readings, torch.stack(fitted.value)) + fitted.shift
    columns = torch.cat([torch.randn(500, 4).double(), own.flatten(1)], 1)
    whole = torch.cat([columns, readings.flatten(1), torch.ones(500, 1).double()], 1)
    second = whole.T @ whole / 500
    assert fitted.unexplained(second) < 1e-12
    off = whole.clone()
    off[:, 4:8] += 0.5
    second = off.T @ off / 500
    wanted = 4 * 0.25 / float(off[:, 4:8].square().sum() / 500)
    assert fitted.unexplained(second) == pytest.approx(wanted)
    # Of products with what other heads read nothing is asked.
    second[12:44, 44:-1] = second[44:-1, 12:44] = torch.nan
    assert fitted.unexplained(second) == pytest.approx(wanted)


def test_a_head_moves_what_is_missing_by_its_rank_not_by_its_width():
    _, fitted = reads(heads=17)
    rows = torch.randn(600, 17 * 4 + 16 * 32 + 1, dtype=torch.float64)
    rows[:, -1] = 1
    second = rows.T @ rows / 600
    with FlopCounterMode(display=False) as counted:
        fitted.alternate(second, 1e-2)
    # Four rounds of sixteen heads, each by 8 directions of 32 into what all read, and all else that is counted.
    whole = 4 * 16 * 2 * (32 * 32 * 512)
    assert counted.get_total_flops() < 1.2 * whole


def test_neighbours_are_listed_once_for_each_place_that_a_search_comes_to(monkeypatch):
    listed, neighbours = [], searching._neighbours
    monkeypatch.setattr(searching, "_neighbours", lambda *given: listed.append(1) or neighbours(*given))
    _, facts, task, _ = searched(monkeypatch, lambda n: abs(n[2] - 4) + 0.1 * n[0], Budget(heads=6))
    assert len(task.asked) > facts["moves"] + 1
    assert len(listed) <= facts["moves"] + 1


def test_quantiles_of_whole_numbers_are_had_at_once(monkeypatch):
    drawn = np.random.default_rng(0).normal(size=(200, 5))
    wanted = np.nanquantile(drawn, [0.1, 0.9], axis=0)
    monkeypatch.setattr(np, "nanquantile", lambda *_, **__: pytest.fail("head by head"))
    np.testing.assert_array_equal(intervals._quantiles(drawn, [0.1, 0.9]), wanted)
    monkeypatch.undo()
    drawn[3, 1], drawn[:, 2] = np.nan, np.nan
    found = intervals._quantiles(drawn, [0.5])
    assert found[0, 1] == np.median(np.delete(drawn[:, 1], 3))
    assert np.isnan(found[0]).tolist() == [False, False, True, False, False]
