"""What a user can rely on at the door: a model held still is given back exactly, and names are what they say."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still


def mixed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), nn.Linear(2, 2))
    model[1][0].eval()
    model[2].eval()
    model[2].weight.requires_grad_(False)
    return model


def flags(model):
    return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("raises", [False, True])
def test_every_flag_and_the_random_state_come_back(raises):
    model, other = mixed(), mixed().eval()
    before, theirs = flags(model), flags(other)
    state = torch.get_rng_state()
    try:
        with still(model, other):
            assert not any(flags(model)[0] + flags(model)[1])
            torch.rand(3)
            if raises:
                raise KeyError
    except KeyError:
        pass
    assert (flags(model), flags(other)) == (before, theirs)
    assert torch.equal(torch.get_rng_state(), state)


def test_parts_replaced_inside_the_block_do_not_disturb_what_was_there():
    model = mixed()
    part, before = model[0], flags(model)
    with still(model):
        model[0] = copy.deepcopy(part)
        model[0] = part
    assert flags(model) == before


def test_a_function_and_the_module_of_its_name_are_both_at_the_door():
    import headwise.analysis
    import headwise.analysis.capture as module
    from headwise.analysis import analyze, capture

    assert module.Pass().texts == 0
    assert headwise.analysis.capture is capture is module
    assert capture(nn.Linear(1, 1), [], [], sites={}).batches == 0
    with pytest.raises(ValueError, match="measures: got 'none'"):
        analyze(nn.Linear(1, 1), None, Corpus([]), measures=["none"])


def test_hooks_go_when_the_block_ends_and_where_the_next_cannot_be_set():
    model = mixed()

    def setting(*modules):
        return (module.register_forward_hook(lambda *_: None) for module in modules)

    def hooks():
        return [len(module._forward_hooks) for module in model]

    with contextlib.suppress(KeyError), hooked(setting(model[0], model[2])):
        assert hooks() == [1, 0, 1]
        raise KeyError
    assert hooks() == [0, 0, 0]
    with pytest.raises(AttributeError), hooked(setting(model[0], None)):
        pass
    assert hooks() == [0, 0, 0]
