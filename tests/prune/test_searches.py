"""Searches: dynamic programming equals brute force, swaps under every unit and meter, times met from below."""

import re
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site, heads_of
from headwise.prune.importance.fisher import QuadraticCosts
from headwise.prune.selection import (
    AdditiveCosts,
    Budget,
    Counts,
    Exchange,
    Keep,
    Time,
    blocks_of,
    reachable,
    rooms_of,
    select,
    timed_reach,
)
from headwise.prune.selection.curves import cheapest_counts, curve_of
from headwise.prune.selection.meters import Linear, Table, freed


def model(layers=3, heads=4, kv_heads=None):
    return {
        str(i): Site(str(i), f"l.{i}", f"l.{i}.o", heads, kv_heads or heads, 8, layer=i, kept=tuple(range(heads)))
        for i in range(layers)
    }


def random_costs(sites, seed, low=0.0):
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(low, 1, site.heads) for name, site in sites.items()}


def cost_of(values, remove):
    return sum(values[name][list(heads)].sum() for name, heads in remove.items())


def every_removal(sites, minimum=1, unit="head"):
    """All sets of heads that may go, as site -> heads."""
    choices = []
    for name, site in sites.items():
        size = site.heads // site.kv_heads if unit == "group" else 1
        pieces = [range(k * size, (k + 1) * size) for k in range(site.heads // size)]
        found = [
            (name, [head for piece in chosen for head in piece])
            for count in range((site.heads - minimum) // size + 1)
            for chosen in combinations(pieces, count)
        ]
        choices.append(found)
    return [dict(each) for each in product(*choices)]


@given(st.integers(0, 500), st.integers(1, 6), st.sampled_from([0.0, -0.4]))
@settings(max_examples=25, deadline=None)
def test_counts_are_the_best_of_all_sets_of_heads(seed, heads, low):
    """Every set of as many heads is tried: with costs that add up, dynamic programming finds the cheapest."""
    sites = model(3, 3)
    values = random_costs(sites, seed, low)
    found = select(sites, AdditiveCosts(values), Budget(heads=heads), search=Counts())
    best = min(cost_of(values, r) for r in every_removal(sites) if sum(map(len, r.values())) == heads)
    assert cost_of(values, found.remove) == pytest.approx(best)
    assert found.cost == pytest.approx(best)


@given(st.integers(0, 500), st.floats(0.05, 0.6))
@settings(max_examples=25, deadline=None)
def test_counts_under_a_meter_are_the_best_that_free_as_much(seed, share):
    sites = model(2, 4, kv_heads=2) | {"2": Site("2", "m", "m.o", 3, 3, 8, layer=2, kept=(0, 1, 2))}
    values = random_costs(sites, seed)
    meter = Linear("parameters", 100.0, {"0": 4.0, "1": 4.0, "2": 5.0}, {"0": 3.0, "1": 3.0, "2": 0.0})
    blocks, budget = blocks_of(sites), Budget(parameters=share)

    def frees(remove):
        return sum(freed(meter, blocks[name], blocks[name].kept, heads) for name, heads in remove.items())

    try:
        greedy = select(sites, AdditiveCosts(values), budget, meter=meter)
    except BadInput:
        return
    found = select(sites, AdditiveCosts(values), budget, meter=meter, search=Counts())
    low, high = frees(greedy.remove), share * meter.total + 1e-9
    fitting = [r for r in every_removal(sites, unit="group") if low - 1e-9 <= frees(r) <= high]
    assert low - 1e-9 <= frees(found.remove) <= high
    assert cost_of(values, found.remove) == pytest.approx(min(cost_of(values, r) for r in fitting))


tables = st.lists(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]), min_size=2, max_size=2), min_size=3, max_size=3)


@given(tables, st.integers(0, 500), st.floats(0.05, 1.0))
@settings(max_examples=20, deadline=None)
def test_a_time_is_met_from_below_at_the_least_cost(rises, seed, share):
    """Also where the table has steps, so that the next head alone saves nothing."""
    sites = model(3, 3)
    values = random_costs(sites, seed)
    table = Table("milliseconds", 20.0, {str(i): [0.0, 0.0, *np.cumsum(rise)] for i, rise in enumerate(rises)})
    blocks, most = blocks_of(sites), float(np.sum(rises))

    def saves(remove):
        return sum(freed(table, blocks[name], blocks[name].kept, heads) for name, heads in remove.items())

    asked = Time(milliseconds=20.0 - share * most, batch=1, length=8)
    if most == 0:
        with pytest.raises(BadInput, match="is no limit"):
            select(sites, AdditiveCosts(values), asked, meter=table)
        return
    found = select(sites, AdditiveCosts(values), asked, meter=table)
    wanted = share * most - 1e-9
    assert saves(found.remove) >= wanted
    best = min(cost_of(values, r) for r in every_removal(sites) if saves(r) >= wanted)
    assert cost_of(values, found.remove) == pytest.approx(best)
    for name, heads in found.remove.items():
        for head in heads:
            less = {**found.remove, name: [h for h in heads if h != head]}
            assert saves(less) < wanted + 2e-9, "nothing goes that need not"


scenes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3), "groups": st.integers(1, 4), "per_group": st.integers(1, 2),
        "unit": st.sampled_from(["group", "even"]), "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 3), "milliseconds": st.floats(0.5, 11), "seed": st.integers(0, 99),
        "protect": st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=2),
    }
)  # fmt: skip


@given(scenes)
@settings(max_examples=120, deadline=None)
def test_times_are_reached_or_refused_and_rules_never_broken(scene):
    heads = scene["groups"] * scene["per_group"]
    sites = model(scene["layers"], heads, scene["groups"])
    named = {}
    for layer, head in scene["protect"]:
        if str(layer) in sites and head < heads:
            named.setdefault(str(layer), []).append(head)
    rng = np.random.default_rng(scene["seed"])
    rows = {name: [0.0, 0.0, *np.cumsum(rng.choice([0.0, 0.3, 1.0], heads - 1))] for name in sites}
    table = Table("milliseconds", 10.0, rows)
    asked = Time(milliseconds=scene["milliseconds"], batch=1, length=8)
    keep = Keep(heads=named, minimum_per_site=scene["minimum"])
    how = {"scope": scene["scope"], "keep": keep, "unit": scene["unit"]}
    try:
        wanted = timed_reach(sites, asked, table, **how)
    except BadInput as problem:
        nearest = re.search(r"milliseconds: ([\d.]+) with", str(problem))
        if nearest is not None:
            assert timed_reach(sites, Time(milliseconds=float(nearest[1]), batch=1, length=8), table, **how) > 0
        return
    for search in (None, Exchange()):
        chosen = select(
            sites, AdditiveCosts(random_costs(sites, scene["seed"])), asked, meter=table, search=search, **how
        )
        blocks = blocks_of(sites)
        saved = sum(freed(table, blocks[n], blocks[n].kept, chosen.remove.get(n, [])) for n in sites)
        assert saved >= wanted - 1e-6
        for name, lost in chosen.remove.items():
            assert not set(lost) & set(named.get(name, []))
            assert heads - len(lost) >= scene["minimum"]
            counts = np.bincount([sites[name].group(head) for head in lost], minlength=scene["groups"])
            if scene["per_group"] > 1:
                assert set(counts) <= {0, scene["per_group"]} if scene["unit"] == "group" else len(set(counts)) == 1
        if scene["scope"] == "uniform":
            assert len({len(chosen.remove.get(name, [])) for name in sites}) == 1


def test_a_model_that_an_earlier_cut_made_fast_enough_loses_nothing_more():
    cut = {"0": Site("0", "l", "l.o", 4, 4, 8, kept=(0, 1))}
    table = Table("milliseconds", 8.0, {"0": [0.0, 0.0, 1.0, 1.0, 1.0]})
    again = select(cut, AdditiveCosts({"0": np.ones(4)}), Time(milliseconds=9.0, batch=1, length=8), meter=table)
    assert again.remove == {"0": [2, 3]}
    assert not again.steps


def test_many_sums_are_thinned_and_still_meet_the_budget(monkeypatch):
    from headwise.prune.selection import curves

    monkeypatch.setattr(curves, "_SUMS", 20)
    sites = model(6, 6)
    rng = np.random.default_rng(0)
    costs = AdditiveCosts(random_costs(sites, 0))
    meter = Linear("parameters", 100.0, {name: float(rng.uniform(1, 2)) for name in sites}, dict.fromkeys(sites, 0.0))
    found = [curve_of(room, costs, meter) for room in rooms_of(sites, Keep()).values()]
    counts = cheapest_counts(found, 10.0, 12.0)
    assert 10.0 <= sum(curve.frees[n] for curve, n in zip(found, counts, strict=True)) <= 12.0
    assert cheapest_counts(found, 1e6, 2e6) is None


class Quadratic:
    """Costs 1_S^T F 1_S: what heads do to one another counts."""

    def __init__(self, forms):
        self.forms = forms

    def start(self, block):
        from headwise.prune.importance.fisher import QuadraticBlock

        return QuadraticBlock(self.forms[block.name], block.kept)

    def of(self, remove):
        return sum(self.forms[name][np.ix_(heads, heads)].sum() for name, heads in remove.items())


def quadratic(sites, seed):
    rng = np.random.default_rng(seed)
    factors = {name: rng.normal(size=(site.heads, 3)) for name, site in sites.items()}
    return Quadratic({name: factor @ factor.T for name, factor in factors.items()})


@given(st.integers(0, 200), st.sampled_from([2, 4, 6]))
@settings(max_examples=40, deadline=None)
def test_heads_of_one_group_are_exchanged_where_every_group_loses_as_many(seed, count):
    sites, keep = model(2, 6, kv_heads=2), Keep(heads={"0": [1]})
    costs = quadratic(sites, seed)
    how = {"unit": "even", "keep": keep}
    plain = select(sites, costs, Budget(heads=count), **how)
    found = select(sites, costs, Budget(heads=count), search=Exchange(), **how)
    assert costs.of(found.remove) <= costs.of(plain.remove) + 1e-9
    assert found.cost == pytest.approx(costs.of(found.remove), abs=1e-9)
    assert 1 not in found.remove.get("0", [])
    assert sum(map(len, found.remove.values())) == sum(map(len, plain.remove.values()))
    for name, heads in found.remove.items():
        assert len({sum(head // 3 == group for head in heads) for group in range(2)}) == 1
        for back in heads:
            for other in set(range(back // 3 * 3, back // 3 * 3 + 3)) - set(heads) - ({1} if name == "0" else set()):
                swapped = {**found.remove, name: [*(head for head in heads if head != back), other]}
                assert costs.of(swapped) >= costs.of(found.remove) - 1e-9


@given(st.integers(0, 200))
@settings(max_examples=25, deadline=None)
def test_sites_exchange_heads_under_a_meter_only_for_as_much(seed):
    sites = model(2, 4) | {"2": Site("2", "m", "m.o", 4, 4, 16, layer=2, kept=(0, 1, 2, 3))}
    costs, meter = (
        quadratic(sites, seed),
        Linear("operations", 40.0, {"0": 1.0, "1": 1.0, "2": 2.5}, dict.fromkeys("012", 0.0)),
    )
    budget = Budget(operations=0.15, length=8)
    plain = select(sites, costs, budget, meter=meter)
    found = select(sites, costs, budget, meter=meter, search=Exchange())
    assert costs.of(found.remove) <= costs.of(plain.remove) + 1e-9

    def lost(chosen):
        return [sum(len(chosen.remove.get(name, [])) for name in names) for names in ("01", "2")]

    assert lost(found) == lost(plain)
    for one, other in (("0", "1"), ("1", "0")):
        for back in found.remove.get(one, []):
            for out in set(range(4)) - set(found.remove.get(other, [])) if len(found.remove.get(other, [])) < 3 else ():
                swapped = {n: [h for h in hs if (n, h) != (one, back)] for n, hs in found.remove.items()}
                swapped[other] = [*swapped.get(other, []), out]
                assert costs.of(swapped) >= costs.of(found.remove) - 1e-9


rules = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3), "groups": st.integers(1, 4), "per_group": st.integers(1, 2),
        "unit": st.sampled_from(["group", "even", "head"]), "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 2), "heads": st.integers(1, 12), "seed": st.integers(0, 99),
        "number": st.sampled_from(["all", 1, 2]), "playing": st.sets(st.integers(0, 23), max_size=5),
        "layer": st.booleans(), "search": st.sampled_from([Exchange(), Counts(evaluations=0), None]),
    }
)  # fmt: skip


@given(rules)
@settings(max_examples=120, deadline=None)
def test_no_search_breaks_a_rule_about_roles_layers_or_emptiness(scene):
    """All induction heads stay, or as many as asked, the strongest; a layer stays whole; no site ends below its minimum."""
    heads = scene["groups"] * scene["per_group"]
    sites = model(scene["layers"], heads, scene["groups"])
    everyone = heads_of(sites)
    plays = np.array([place in scene["playing"] for place in range(len(everyone))])
    strength = np.random.default_rng(scene["seed"]).random(len(everyone))
    arrays = {"roles/induction/assigned": plays, "roles/induction/excess": strength}
    evidence = SimpleNamespace(heads=everyone, arrays=arrays)
    keep = Keep(
        roles={"induction": scene["number"]}, layers=[0] if scene["layer"] else [], minimum_per_site=scene["minimum"]
    )
    how = {"scope": scene["scope"], "keep": keep, "unit": scene["unit"], "evidence": evidence}
    budget = Budget(heads=scene["heads"])
    try:
        promised = reachable(sites, budget, **how)
    except BadInput:
        return
    chosen = select(sites, quadratic(sites, scene["seed"]), budget, search=scene["search"], **how)
    gone = {(name, head) for name, lost in chosen.remove.items() for head in lost}
    assert len(gone) == promised <= scene["heads"]
    playing = [head for head, play in zip(everyone, plays, strict=True) if play]
    stay = len(playing) if scene["number"] == "all" else min(scene["number"], len(playing))
    assert sum(head not in gone for head in playing) >= stay
    if scene["layer"]:
        assert "0" not in chosen.remove
    else:
        strongest = sorted(playing, key=lambda head: -strength[everyone.index(head)])[:stay]
        assert not gone & set(strongest)
    for name, site in sites.items():
        left = site.heads - len(chosen.remove.get(name, ()))
        assert left >= min(scene["minimum"], site.heads)
        counts = np.bincount([site.group(head) for head in chosen.remove.get(name, [])], minlength=scene["groups"])
        if scene["unit"] == "group":
            assert set(counts) <= {0, scene["per_group"]}
        if scene["unit"] == "even" and scene["per_group"] > 1:
            assert len(set(counts)) == 1
    if scene["scope"] == "uniform":
        assert len({len(chosen.remove.get(name, [])) for name in sites}) == 1


@pytest.mark.parametrize("unit", ["head", "group", "even"])
@given(seed=st.integers(0, 10_000), part=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_swaps_free_neither_more_nor_less_where_a_group_takes_parameters_of_its_own(unit, seed, part):
    """The last head of a group frees its keys and values, too: swapped for another, it freed too little or too much."""
    sites = model(layers=2, heads=4, kv_heads=2)
    meter = Linear("parameters", 200.0, {"0": 3.0, "1": 3.0}, {"0": 5.0, "1": 5.0})
    roots = {name: np.random.default_rng(seed + place).normal(size=(4, 6)) for place, name in enumerate(sites)}
    costs = QuadraticCosts({name: root @ root.T for name, root in roots.items()})
    how = {"unit": unit, "meter": meter}
    least, most = {"head": (3.0, 28.0), "group": (11.0, 22.0), "even": (6.0, 12.0)}[unit]
    share = (least + part * (most - least)) / 200

    def frees(selection):
        left = {name: [h for h in range(4) if h not in selection.remove.get(name, ())] for name in sites}
        return sum(
            meter.used(block, range(4)) - meter.used(block, left[name]) for name, block in blocks_of(sites).items()
        )

    start = select(sites, costs, Budget(parameters=share), **how)
    found = select(sites, costs, Budget(parameters=share), search=Exchange(), **how)
    assert frees(found) == pytest.approx(frees(start))
    assert frees(found) <= share * 200 + 1e-6
    assert found.cost <= start.cost + 1e-9
