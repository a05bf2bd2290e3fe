"""Stacks that share a bias table (T5): the first cut gives every block a table of its own, and budgets count that."""

import copy
import functools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Pop2PianoConfig, SwitchTransformersConfig, T5Config, T5Model
from transformers import Pop2PianoForConditionalGeneration as Pop2Piano
from transformers import SwitchTransformersForConditionalGeneration as Switch

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.selection import AdditiveCosts, Budget, metered_reach, select
from headwise.prune.selection.blocks import blocks_of
from headwise.prune.selection.meters import gone
from headwise.prune.selection.searches import Counts, Exchange, Greedy
from headwise.prune.speed.metering import meter_of, weightless
from headwise.prune.speed.operations import parameters
from headwise.prune.surgery import cut
from tests.models import build, cuttable


def scores(sites, seed):
    rng = np.random.default_rng(seed)
    return AdditiveCosts({name: rng.random(site.heads) for name, site in sites.items()})


def shared_table(name):
    """A small model without weights whose stacks may share a bias table."""
    more = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 99}
    with torch.device("meta"):
        if name == "pop2piano":
            return Pop2Piano(Pop2PianoConfig(num_layers=3, num_decoder_layers=2, **more))
        if name == "switch":
            return Switch(SwitchTransformersConfig(num_layers=3, num_experts=2, **more))
        if name == "t5-two-heads":
            return T5Model(T5Config(num_layers=3, **{**more, "num_heads": 2}))
    return weightless(build(cuttable(name)))


@functools.cache
def cut_before(name, earlier):
    """Such a model without a head of its first blocks, and the size that it had."""
    model = shared_table(name)
    size, sites = parameters(model), list(find_sites(model))
    return cut(model, {site: [0] for site in sites[: 2 * earlier : 2]}), size


@functools.cache
def counted(name, earlier):
    """How the parameters of such a model are counted."""
    model, _ = cut_before(name, earlier)
    return meter_of(model, find_sites(model), Budget(parameters=0.1))


@pytest.mark.parametrize("name", ["t5", "t5-deep", "t5-two-heads", "mt5", "umt5", "longt5", "pop2piano", "switch"])
@given(
    share=st.floats(0.005, 0.2),
    scope=st.sampled_from(["model", "site", "uniform"]),
    search=st.sampled_from([Greedy(), Exchange(), Counts(evaluations=0)]),
    seed=st.integers(0, 99),
    earlier=st.sampled_from([0, 1, 3]),
)
@settings(max_examples=10, deadline=None)
def test_stacks_that_share_a_table_keep_budgets_from_below(name, share, scope, search, seed, earlier):
    """The first cut in a stack gives every block of it a table of its own: once, however many blocks are cut."""
    model, size = cut_before(name, earlier)
    sites, meter, budget = find_sites(model), counted(name, earlier), Budget(parameters=share)
    assert meter.total == size
    assert size - gone(meter, blocks_of(sites)) == parameters(model)
    try:
        chosen = select(sites, scores(sites, seed), budget, scope=scope, search=search, meter=meter)
    except BadInput as problem:
        nearest = re.search(r"parameters: ([\d.e-]+) with", str(problem))
        assert metered_reach(sites, Budget(parameters=float(nearest[1])), meter, scope) > 0
        return
    wanted, smaller = share * size, cut(copy.deepcopy(model), chosen.remove)
    freed_in_all = size - parameters(smaller)
    assert freed_in_all <= max(wanted, size - parameters(model)) + 1e-6
    piece = max(meter.per_head.values()) * (len(sites) if scope == "uniform" else 1)
    assert wanted - freed_in_all < piece
