"""Budgets that are not counted in heads: met from below, predicted exactly, refused with the nearest one."""

import copy
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site, find_sites
from headwise.prune.importance.calibration import Calibration
from headwise.prune.recipe import Recipe, RecipeError, check_against
from headwise.prune.selection import AdditiveCosts, Budget, Keep, metered_reach, select
from headwise.prune.selection.blocks import blocks_of
from headwise.prune.selection.meters import Linear, Table, all_freed, freed, gone
from headwise.prune.speed.inputs import inputs_to_time
from headwise.prune.speed.metering import meter_of, weightless
from headwise.prune.speed.operations import operations, parameters
from headwise.prune.surgery import cut
from tests.models import build, cuttable

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}


def bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=50, **SIZES)).eval()


def llama(kv_heads=2):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=kv_heads, head_dim=8, **SIZES)).eval()


def scores(sites, seed=0):
    rng = np.random.default_rng(seed)
    return AdditiveCosts({name: rng.random(site.heads) for name, site in sites.items()})


@pytest.mark.parametrize(
    "wrong",
    [{"operations": 0.1}, {"heads": 3, "length": 9}, {"parameters": 0.1, "cache": 0.1}, {"cache": 1.1}],
)
def test_malformed_budgets_are_refused(wrong):
    with pytest.raises(ValidationError):
        Budget(**wrong)


@pytest.mark.parametrize(("build", "unit"), [(bert, "group"), (llama, "group"), (llama, "even")])
@pytest.mark.parametrize("kind", ["parameters", "operations"])
def test_what_a_meter_promises_the_cut_keeps(build, unit, kind):
    model = build()
    sites = find_sites(model)
    budget = Budget(parameters=0.08) if kind == "parameters" else Budget(operations=0.1, length=24)
    meter = meter_of(model, sites, budget, unit)
    chosen = select(sites, scores(sites), budget, unit=unit, meter=meter)
    assert chosen.remove

    def measured(of):
        return parameters(of) if kind == "parameters" else operations(of, inputs_to_time(of, 1, 24))

    before = measured(model)
    assert meter.total == before
    promised = sum(
        freed(meter, block, block.kept, chosen.remove.get(name, [])) for name, block in blocks_of(sites).items()
    )
    lost = before - measured(cut(model, chosen.remove))
    assert lost == promised
    wanted = getattr(budget, kind) * meter.total
    assert promised <= wanted + 1e-6


def cached(model, seed=0):
    """Numbers in the cache after a text of two tokens, by a way of their own."""
    inputs = {**inputs_to_time(model, 1, 2, seed), "use_cache": True}
    held = model(**inputs).past_key_values
    parts = (
        [held.self_attention_cache, held.cross_attention_cache] if hasattr(held, "cross_attention_cache") else [held]
    )
    return sum(layer.keys.numel() + layer.values.numel() for part in parts for layer in part.layers)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("t5", Budget(parameters=0.1)),  # a block that is cut gets a bias table of its own
        ("t5", Budget(cache=0.1)),  # an encoder keeps none
        ("falcon", Budget(cache=0.1)),  # every query head keeps its own, shared or not
        ("llava", Budget(cache=0.1)),
        ("llava", Budget(operations=0.1, length=9)),  # no image in the text: the vision tower does not run
        ("vit", Budget(operations=0.1, length=9)),  # as many patches as there are, not `length`
        ("clip", Budget(operations=0.1, length=9)),
        ("deberta", Budget(operations=0.1, length=9)),  # scores of positions, too
    ],
)
def test_every_kind_of_attention_takes_what_the_meter_says(name, budget):
    model = build(cuttable(name))
    sites = find_sites(model)
    meter = meter_of(model, sites, budget)
    measure = {
        "parameters": parameters, "cache": cached, "operations": lambda of: operations(of, inputs_to_time(of, 1, 9)),
    }[budget.amount]  # fmt: skip
    before = measure(model)
    assert meter.total == before
    for block in blocks_of(sites).values():
        site = block.sites[0]
        if site.layer:
            continue
        size = block.heads // site.kv_heads
        for lost in (range(size), range(block.heads - size), range(block.heads)):
            smaller = cut(copy.deepcopy(model), {call.name: list(lost) for call in block.sites})
            left = {b.name: b.kept for b in blocks_of(sites).values()}
            after = {**left, block.name: [head for head in block.kept if head not in lost]}
            promised = all_freed(meter, blocks_of(sites).values(), left, after)
            assert before - measure(smaller) == promised, (block.name, lost)


def test_a_cut_model_counts_what_is_gone():
    model = bert()
    sites = find_sites(model)
    budget = Budget(parameters=0.15)
    whole = meter_of(model, sites, budget)
    chosen = select(sites, scores(sites), budget, meter=whole)
    smaller = cut(model, chosen.remove)
    again = find_sites(smaller)
    meter = meter_of(smaller, again, budget)
    assert meter.total == whole.total
    assert gone(meter, blocks_of(again)) == whole.total - parameters(smaller)
    repeated = select(again, scores(again), budget, meter=meter)
    assert not repeated.steps
    assert repeated.remove == chosen.remove


def test_a_decision_counts_once():
    model = bert()
    calibration = Calibration(model, find_sites(model), [])
    meter = calibration.meter(Budget(operations=0.1, length=9), "group")
    assert calibration.meter(Budget(operations=0.1, length=9), "group") is meter
    assert calibration.meter(Budget(operations=0.1, length=8), "group").total < meter.total


def test_the_cache_counts_groups_only():
    model = llama()
    sites = find_sites(model)
    budget = Budget(cache=0.5)
    meter = meter_of(model, sites, budget)
    chosen = select(sites, scores(sites), budget, meter=meter)
    assert sum(map(len, chosen.remove.values())) == 6  # three of six groups, two heads each
    for unit in ("head", "even"):
        with pytest.raises(BadInput, match="unit group"):
            meter_of(model, sites, budget, unit=unit)
    with pytest.raises(BadInput, match="no key/value cache"):
        meter_of(bert(), find_sites(bert()), budget)


scenes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 4),
        "groups": st.integers(1, 4),
        "per_group": st.integers(1, 3),
        "unit": st.sampled_from(["group", "even", "head"]),
        "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 3),
        "share": st.floats(0.01, 0.9),
        "seed": st.integers(0, 99),
        "protect": st.sets(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=3),
        "sizes": st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=4, max_size=4),
        "first": st.floats(0, 0.9),
    }
)


@given(scenes)
@settings(max_examples=150, deadline=None)
def test_metered_budgets_are_met_from_below_and_rules_hold(scene):
    heads = scene["groups"] * scene["per_group"]
    sites = {
        str(i): Site(str(i), f"l.{i}", f"l.{i}.o", heads, scene["groups"], 8, layer=i, kept=tuple(range(heads)))
        for i in range(scene["layers"])
    }
    named = {}
    for layer, head in scene["protect"]:
        if str(layer) in sites and head < heads:
            named.setdefault(str(layer), []).append(head)
    keep = Keep(heads=named, minimum_per_site=scene["minimum"])
    parts = dict(zip(sites, scene["sizes"], strict=False))
    meter = Linear(
        "parameters", 0.0, {n: float(p[0]) for n, p in parts.items()}, {n: float(p[1]) for n, p in parts.items()}
    )
    blocks = blocks_of(sites)
    total = sum(meter.used(block, block.kept) for block in blocks.values()) + 5.0
    # What the first cut in a stack brings in; a stack here is a half of the layers.
    halves = [tuple(sites)[: len(sites) // 2], tuple(sites)[len(sites) // 2 :]]
    once = {half: scene["first"] * min(meter.per_head[name] for name in half) for half in halves if half}
    meter = Linear("parameters", total, meter.per_head, meter.per_group, once)
    budget = Budget(parameters=scene["share"])
    how = {"scope": scene["scope"], "keep": keep, "unit": scene["unit"]}
    try:
        metered_reach(sites, budget, meter, **how)
    except BadInput as problem:
        nearest = re.search(r"parameters: ([\d.e-]+) with", str(problem))
        # None where nothing may go at all.
        assert nearest is None or metered_reach(sites, Budget(parameters=min(float(nearest[1]), 1.0)), meter, **how) > 0
        return
    chosen = select(sites, scores(sites, scene["seed"]), budget, meter=meter, **how)
    left = {n: [head for head in block.kept if head not in chosen.remove.get(n, [])] for n, block in blocks.items()}
    got = all_freed(meter, blocks.values(), {n: block.kept for n, block in blocks.items()}, left)
    wanted = scene["share"] * total
    assert got <= wanted + 1e-6
    for name, lost in chosen.remove.items():
        assert not set(lost) & set(named.get(name, []))
        assert heads - len(lost) >= scene["minimum"]
    if scene["scope"] == "uniform":
        assert len({len(chosen.remove.get(name, [])) for name in sites}) == 1
        piece = sum(meter.used(block, block.kept) for block in blocks.values())
    else:
        largest = {"group": scene["per_group"], "even": scene["groups"], "head": 1}[scene["unit"]]
        largest = 1 if scene["per_group"] == 1 else largest
        piece = max(
            p[0] * largest + p[1] * (scene["groups"] if scene["unit"] != "group" else 1) for p in parts.values()
        )
    fewest = {name: block.kept[: max(scene["minimum"], 1)] for name, block in blocks.items()}
    most = all_freed(meter, blocks.values(), {n: block.kept for n, block in blocks.items()}, fewest)
    assert wanted - got < piece or wanted > most - piece


def test_what_frees_nothing_stays():
    """A table may say that the next head saves no time: it is not removed for nothing."""
    sites = {"0": Site("0", "l", "l.o", 3, 3, 8, kept=(0, 1, 2)), "1": Site("1", "m", "m.o", 3, 3, 8, kept=(0, 1, 2))}
    meter = Table("milliseconds", 10.0, {"0": [1.0, 2.0, 2.0, 2.0], "1": [1.0, 2.0, 3.0, 4.0]})
    from headwise.prune.selection.greedy import greedy
    from headwise.prune.selection.reach import rooms_of

    steps = greedy(rooms_of(sites, Keep()), scores(sites), 2.0, meter=meter)
    assert [step.block for step in steps] == ["1", "1"]


def test_uniform_takes_as_many_also_where_nothing_is_freed():
    model = build(cuttable("t5"))
    sites, budget = find_sites(model), Budget(cache=0.3)
    chosen = select(sites, scores(sites), budget, scope="uniform", meter=meter_of(model, sites, budget))
    assert {name: len(heads) for name, heads in chosen.remove.items()} == dict.fromkeys(sites, 1)


def test_a_copy_without_weights_has_every_shape():
    model = bert()
    twin = weightless(model)
    assert parameters(twin) == parameters(model)
    assert all(p.is_meta for p in twin.parameters())
    assert not any(p.is_meta for p in model.parameters())


def test_recipes_state_budgets_and_are_checked_on_the_model():
    text = "schema: 1\nscore: {kind: random}\nremove: {parameters: 0.9}\n"
    model = bert()
    with pytest.raises(RecipeError, match=r"parameters: 0\.\d+ with scope"):
        check_against(Recipe.from_text(text), find_sites(model), model)
    changed = Recipe.from_text(text, overrides=["remove.operations=0.1", "remove.length=64"])
    assert (changed.remove.operations, changed.remove.length, changed.remove.parameters) == (0.1, 64, None)
    check_against(changed, find_sites(model), model)
    with pytest.raises(RecipeError, match="belong together"):
        Recipe.from_text(text, overrides=["remove.operations=0.1"])
