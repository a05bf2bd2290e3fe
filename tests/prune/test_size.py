"""What grows with the model is held once, and no longer than it is needed: copies and matrices are counted."""

import numpy as np
import pytest

from headwise.analysis.sites import find_sites
from headwise.prune.importance import priced, repair_cost
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.selection import Budget, Keep, select
from tests.prune.importance_scene import calibration, flat, made


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
    backward = context._passes["labels"]
    assert backward.slopes and not backward.fit and not backward.held
    assert context._passes["none"].fit
    context.decided()
    assert not backward.slopes
    assert context.gradients(slopes=True).slopes, "and are had again where they are wanted after all"


def test_weighted_moments_and_directions_come_from_one_pass():
    context = calibration(made("bert"))
    seen = []
    original = context.model.forward
    context.model.forward = lambda *args, **named: (seen.append(1), original(*args, **named))[1]
    Reconstruction(weight="gradient").score(context)
    once = len(seen)
    assert once == len(list(context.batches))
    Reconstruction(weight="gradient").score(context)
    assert len(seen) == once
