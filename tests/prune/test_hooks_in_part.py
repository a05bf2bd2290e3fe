"""Where a hook cannot be set, those that were set before it go: whatever looks at a model leaves it as it was."""

import copy

import pytest
import torch
from torch import nn

from headwise.analysis.capture import capture
from headwise.analysis.gates import contexts
from headwise.analysis.sites import find_sites
from headwise.analysis.statistics import Statistics
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.sequential import Sequential
from headwise.prune.importance.gradient import Gradient
from headwise.prune.proof import prove
from headwise.prune.speed.attention import attention_speed
from headwise.prune.surgery import cut
from tests.prune.importance_scene import batched, calibration, made

REMOVE = {"0": [1], "1": [2, 3]}


class NoMore(Exception):
    """A hook cannot be set."""


def proves(model):
    prove(model, cut(copy.deepcopy(model), REMOVE), REMOVE, [batched()[0].inputs])


def repairs(model):
    Reconstruct(values="refit", correct="outputs").repair(calibration(model), REMOVE)


def captures(model):
    capture(model, batched()[:1], [Statistics(find_sites(model))])


def watches(model):
    with contexts(model), torch.no_grad():
        model(**batched()[0].inputs)


LOOKS = {
    "proof": proves,
    "score": lambda model: Gradient().score(calibration(model)),
    "repair": repairs,
    "in order": lambda model: Sequential().repair(calibration(model), REMOVE),
    "capture": captures,
    "contexts": watches,
    "speed": lambda model: attention_speed(model, model, dict(batched()[0].inputs), rounds=1),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_hook_that_cannot_be_set_leaves_none_of_those_before_it(look, monkeypatch):
    touched, asked = {}, {"last": 0, "now": 0}

    def counting(register):
        def wrapped(module, *args, **more):
            touched[id(module)] = module
            asked["now"] += 1
            if asked["now"] == asked["last"]:
                raise NoMore
            return register(module, *args, **more)

        return wrapped

    for kind in ("register_forward_hook", "register_forward_pre_hook"):
        monkeypatch.setattr(nn.Module, kind, counting(getattr(nn.Module, kind)))
    LOOKS[look](made("bert", torch.float32))
    assert not left(touched), "nothing failed"
    # The first of several that are set together is followed by more before the pass runs.
    for last in range(1, min(asked["now"], 9)):
        touched.clear()
        asked.update(last=last, now=0)
        with pytest.raises(NoMore):
            LOOKS[look](made("bert", torch.float32))
        assert not left(touched), f"hook {last} could not be set"


def left(touched):
    return [type(one).__name__ for one in touched.values() if one._forward_hooks or one._forward_pre_hooks]
