import re
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site, heads_of
from headwise.prune.selection import AdditiveCosts, Budget, Exchange, Keep, ladder, reachable, select, walk
from headwise.prune.selection.blocks import blocks_of


def site(name, heads=4, kv_heads=None, kept=None, **more):
    facts = {"module": f"l.{name}", "output": f"l.{name}.o", "kv_heads": kv_heads or heads, "head_dim": 8}
    kept = tuple(range(heads)) if kept is None else kept
    return Site(name, heads=heads, kept=kept, **{"layer": int(name), **facts, **more})


def model(layers=3, heads=4, kv_heads=None, **more):
    return {str(layer): site(str(layer), heads, kv_heads, **more) for layer in range(layers)}


def random_scores(sites, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.random(found.heads) for name, found in sites.items()}


def choose(sites, budget, seed=0, **more):
    return select(sites, AdditiveCosts(random_scores(sites, seed)), budget, **more)


def lost(selection):
    return sum(map(len, selection.remove.values()))


@pytest.mark.parametrize(
    "given_", [{}, {"heads": 1, "fraction": 0.1}, {"heads": -1}, {"fraction": 1.2}, {"heads": 1.5}]
)
def test_a_budget_is_one_sensible_number(given_):
    with pytest.raises(ValidationError):
        Budget(**given_)


def test_model_scope_takes_the_lowest_scores_of_all():
    sites = model()
    scores = random_scores(sites)
    chosen = select(sites, AdditiveCosts(scores), Budget(heads=5), keep=Keep(minimum_per_site=0))
    flat = np.concatenate([scores[name] for name in sites])
    lowest = {heads_of(sites)[index] for index in np.argsort(flat)[:5]}
    assert {(name, head) for name, heads in chosen.remove.items() for head in heads} == lowest
    assert chosen.cost == pytest.approx(np.sort(flat)[:5].sum())


scenes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 4),
        "groups": st.integers(1, 4),
        "per_group": st.integers(1, 3),
        "unit": st.sampled_from(["group", "even", "head"]),
        "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 3),
        "fraction": st.floats(0, 1),
        "seed": st.integers(0, 99),
        "protect": st.sets(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=3),
        "refused": st.booleans(),
    }
)


@given(scenes)
@settings(max_examples=80, deadline=None)
def test_what_a_search_tries_ends_where_the_budget_does_and_can_be_met(scene):
    sites = model(scene["layers"], scene["groups"] * scene["per_group"], scene["groups"])
    keep, wanted = Keep(minimum_per_site=scene["minimum"]), Budget(fraction=scene["fraction"])
    how = {"scope": scene["scope"], "keep": keep, "unit": scene["unit"]}
    steps = ladder(sites, wanted.count(sites), **how)
    assert [reachable(sites, Budget(heads=step), **how) for step in steps] == steps == sorted(set(steps))
    try:
        assert steps[-1:] == [promised] if (promised := reachable(sites, wanted, **how)) else not steps
    except BadInput as problem:
        # Too little for one piece, or more than may go: then all that may.
        nearest = re.search(r"heads: (\d+) ", str(problem))
        assert steps == [] if nearest is None or int(nearest[1]) > wanted.count(sites) else steps[-1] == int(nearest[1])


def test_a_share_of_less_than_a_head_is_refused_but_nothing_may_be_asked_for():
    sites = model(2, 4, 4)
    with pytest.raises(BadInput, match=r"a share of 0\.1 of 8 heads .* less than what goes in one piece .* heads: 1 "):
        reachable(sites, Budget(fraction=0.1))
    with pytest.raises(BadInput, match="leave nothing to remove"):
        reachable(sites, Budget(fraction=0.1), keep=Keep(minimum_per_site=4))
    assert reachable(sites, Budget(fraction=0)) == reachable(sites, Budget(heads=0)) == 0


@given(scenes)
@settings(max_examples=300, deadline=None)
def test_budgets_are_met_and_rules_never_broken(scene):
    sites = model(scene["layers"], scene["groups"] * scene["per_group"], scene["groups"])
    if scene["refused"]:
        sites["0"] = site("0", scene["groups"] * scene["per_group"], scene["groups"], refusal="it is odd")
    named = {}
    for layer, head in scene["protect"]:
        if str(layer) in sites and head < sites["0"].heads:
            named.setdefault(str(layer), []).append(head)
    keep = Keep(heads=named, minimum_per_site=scene["minimum"])
    budget = Budget(fraction=scene["fraction"])
    how = {"scope": scene["scope"], "keep": keep, "unit": scene["unit"]}
    # Without grouped queries the units are the same.
    even = scene["groups"] if scene["per_group"] > 1 else 1
    piece = {"group": scene["per_group"], "even": even, "head": 1}[scene["unit"]]
    if scene["scope"] == "uniform":
        piece *= len(sites)
    try:
        promised = reachable(sites, budget, **how)
    except BadInput as problem:
        said = re.search(r"heads: (\d+) ", str(problem))
        nearest = int(said[1]) if said else 0
        assert nearest == 0 or nearest != budget.count(sites)
        assert nearest == 0 or reachable(sites, Budget(heads=nearest), **how) == nearest
        return
    chosen = choose(sites, budget, scene["seed"], **how)
    assert lost(chosen) == promised
    assert 0 <= budget.count(sites) - promised < piece
    for name, heads in chosen.remove.items():
        assert not set(heads) & set(named.get(name, []))
        assert sites[name].heads - len(heads) >= scene["minimum"]
        assert not sites[name].refusal
        counts = np.bincount([sites[name].group(head) for head in heads], minlength=scene["groups"])
        if scene["unit"] == "group":
            assert set(counts) <= {0, scene["per_group"]}
        if scene["unit"] == "even" and scene["per_group"] > 1:
            assert len(set(counts)) == 1
    if scene["scope"] == "uniform":
        assert len({len(chosen.remove.get(name, [])) for name in sites}) == 1
    assert {(name, head) for name, heads in chosen.reasons.items() for head in heads} == set(heads_of(sites))


def test_site_scope_levels_the_losses():
    chosen = choose(model(6, 12), Budget(heads=43), scope="site")
    assert sorted(len(heads) for heads in chosen.remove.values()) == [7, 7, 7, 7, 7, 8]
    assert {len(heads) for heads in choose(model(6, 12), Budget(heads=43), scope="uniform").remove.values()} == {7}


def test_repeating_a_recipe_removes_nothing_more():
    sites = model()
    first = choose(sites, Budget(fraction=0.5))
    cut = {name: site(name, kept=tuple(h for h in range(4) if h not in first.remove.get(name, []))) for name in sites}
    again = choose(cut, Budget(fraction=0.5))
    assert again.remove == first.remove
    assert again.steps == []
    further = choose(cut, Budget(fraction=0.75))
    assert lost(further) == 9
    assert all(set(first.remove[name]) <= set(further.remove[name]) for name in first.remove)
    gone_site, gone_heads = next(iter(first.remove.items()))
    assert "earlier cut" in again.reasons[gone_site][gone_heads[0]]


def test_a_site_may_empty_only_if_asked():
    sites = model(2)
    with pytest.raises(BadInput, match=r"heads: 6 \(fraction: 0\.75\)"):
        choose(sites, Budget(fraction=1.0))
    assert lost(choose(sites, Budget(fraction=1.0), keep=Keep(minimum_per_site=0))) == 8


def test_without_grouped_queries_the_units_are_the_same():
    sites = model(2, 4)
    found = [choose(sites, Budget(heads=3), unit=unit).remove for unit in ("group", "even", "head")]
    assert found[0] == found[1] == found[2]


def test_repeating_a_recipe_removes_nothing_more_also_where_groups_did_not_reach_the_budget():
    sites = model(3, heads=6, kv_heads=3)
    for scope, fraction in (("model", 0.3), ("site", 0.3), ("uniform", 0.6)):
        first = choose(sites, Budget(fraction=fraction), scope=scope).remove
        kept = {n: tuple(h for h in range(6) if h not in first.get(n, ())) for n in sites}
        again = {name: site(name, 6, 3, kept=left) for name, left in kept.items()}
        assert choose(again, Budget(fraction=fraction), scope=scope).remove == first
    with pytest.raises(BadInput, match="nearest"):
        choose({"0": site("0", 6, 3, kept=(0, 1, 2, 3)), "1": site("1", 6, 3)}, Budget(heads=3), scope="uniform")


def test_less_than_a_group_is_refused_with_the_nearest_budget():
    with pytest.raises(BadInput, match="heads: 3 "):
        choose(model(1, heads=6, kv_heads=2), Budget(heads=2))
    assert lost(choose(model(1, heads=6, kv_heads=2), Budget(heads=2), unit="even")) == 2


def test_calls_of_one_module_lose_the_same_heads():
    sites = {str(call): site(str(call), module="shared", call=call, calls=3) for call in range(3)}
    assert list(blocks_of(sites)) == ["0"]
    chosen = choose(sites, Budget(heads=7))
    assert lost(chosen) == 6
    assert chosen.remove["0"] == chosen.remove["1"] == chosen.remove["2"]
    scores = random_scores(sites)
    expected = np.argsort(sum(scores.values()))[:2]
    assert chosen.remove["0"] == sorted(expected)


def test_even_units_take_the_cheapest_head_of_each_group():
    sites = model(1, heads=4, kv_heads=2)
    scores = {"0": np.array([3.0, 1.0, 9.0, 8.0])}
    assert select(sites, AdditiveCosts(scores), Budget(heads=2), unit="even").remove == {"0": [1, 3]}
    assert select(sites, AdditiveCosts(scores), Budget(heads=2), unit="group").remove == {"0": [0, 1]}
    assert select(sites, AdditiveCosts(scores), Budget(heads=3), unit="head").remove == {"0": [0, 1, 3]}


def roles_of(sites, assigned, excess):
    arrays = {"roles/local/assigned": np.array(assigned), "roles/local/excess": np.array(excess)}
    return SimpleNamespace(heads=heads_of(sites), arrays=arrays)


def test_the_strongest_heads_of_a_role_stay():
    sites = model(1)
    evidence = roles_of(sites, [True, True, True, False], [0.1, 0.9, 0.5, 0.99])
    scores = AdditiveCosts({"0": np.array([1.0, 2.0, 3.0, 4.0])})

    def kept(number):
        keep = Keep(roles={"local": number})
        return select(sites, scores, Budget(heads=1), keep=keep, evidence=evidence).remove

    assert kept(1) == {"0": [0]}
    assert kept(3) == kept("all") == kept(7) == {"0": [3]}
    named = Keep(roles={"local": 1}, heads={"0": [0]})
    chosen = select(sites, scores, Budget(heads=1), keep=named, evidence=evidence)
    assert chosen.remove == {"0": [1]}, "a head kept anyway counts for its role"


def test_keep_rules_that_match_nothing_are_named_all_at_once():
    sites = model(2)
    evidence = roles_of(sites, [True] * 8, [0.5] * 8)
    keep = Keep(heads={"9": [0], "1": [4]}, layers=[5, "x"], roles={"coreference": 1})
    with pytest.raises(BadInput) as caught:
        choose(sites, Budget(heads=1), keep=keep, evidence=evidence)
    for part in (
        "no site '9'; the model has 0, 1",
        "no head [4]",
        "no layer 5",
        "no layer 'x'",
        "it has local",
    ):
        assert part in str(caught.value)
    with pytest.raises(BadInput, match="no evidence about roles"):
        choose(sites, Budget(heads=1), keep=Keep(roles={"local": 1}))


def test_a_role_that_too_few_heads_play_is_said(caplog):
    sites = {"0": site("0")}
    evidence = roles_of(sites, [True, False, False, False], [0.9, 0.0, 0.0, 0.0])
    Keep(roles={"local": 1}).tell_unmet(sites, evidence)
    Keep(roles={"local": "all"}).tell_unmet(sites, evidence)
    assert not caplog.messages
    Keep(roles={"local": 2}).tell_unmet(sites, evidence)
    walk(sites, AdditiveCosts({"0": np.arange(4.0)}), Budget(heads=1), keep=Keep(roles={"local": 3}), evidence=evidence)
    Keep(roles={"local": "all"}).tell_unmet(sites, roles_of(sites, [False] * 4, [0.0] * 4))
    assert caplog.messages == [
        "keep.roles.local: 2 to stay, surely played by 1", "keep.roles.local: 3 to stay, surely played by 1",
        "keep.roles.local: no head surely plays it, so none is kept for it",
    ]  # fmt: skip


def test_a_bare_layer_number_must_mean_one_site():
    sites = {"encoder.self.0": site("0"), "decoder.self.0": site("0", module="d")}
    with pytest.raises(BadInput, match=r"any of encoder\.self\.0, decoder\.self\.0"):
        Keep(layers=[0]).protected(sites)
    assert set(Keep(layers=["decoder.self.0"]).protected(sites)) == {"decoder.self.0"}


@pytest.mark.parametrize("wrong", [{"heads": {"0": ["1"]}}, {"heads": {4.1: [0]}}, {"minimum_per_site": -1}, {"x": 1}])
def test_malformed_keep_rules_are_refused(wrong):
    with pytest.raises(ValidationError):
        Keep(**wrong)


def test_reasons_say_what_happened():
    sites = {**model(2), "2": site("2", refusal="its heads are mixed")}
    scores = {"0": np.array([0.0, 0.1, 0.2, 0.3]), "1": np.full(4, 5.0), "2": np.zeros(4)}
    keep = Keep(heads={"1": [2]})
    notes = {"0": {1: "twin of 1.2 (r = 0.97)"}}
    chosen = select(sites, AdditiveCosts(scores), Budget(heads=4), keep=keep, score="gradient", notes=notes)
    why = chosen.reasons
    assert why["0"][1] == "number 2 of 4 to go, by gradient: cost 0.1; twin of 1.2 (r = 0.97)"
    assert why["0"][3] == "kept: minimum_per_site (cost 0.3)"
    assert why["1"][0] == "number 4 of 4 to go, by gradient: cost 5"
    assert why["1"][1] == "kept: removing it next would cost 5 by gradient; the last head removed cost just as much"
    assert why["1"][2] == "kept: named in keep.heads"
    assert why["2"][0] == "kept: its heads are mixed"


@pytest.mark.parametrize("scope", ["uniform", "site"])
def test_a_head_that_stayed_is_held_against_its_own_block_where_each_loses_its_share(scope):
    scores = {"0": np.array([0.0, 0.1, 0.2, 0.3]), "1": np.array([5.0, 6.0, 7.0, 8.0])}
    why = select(model(2), AdditiveCosts(scores), Budget(heads=4), scope=scope, score="gradient").reasons
    said = "kept: removing it next would cost {} by gradient; the last head removed{} cost {}"
    assert why["0"][2] == said.format(0.2, " in its block", 0.1)
    assert why["1"][2] == said.format(7, "", 6)


class Interacting:
    """Costs where two given heads are twins: cheap alone, dear together."""

    def __init__(self, twins):
        self.twins, self.gone = set(twins), set()

    def start(self, block):
        return Interacting(self.twins)

    def costs(self, units):
        return np.array([10.0 if self.twins <= self.gone | set(unit) else 1 + 0.1 * unit[0] for unit in units])

    def remove(self, unit):
        self.gone |= set(unit)


@pytest.mark.parametrize("twins", list(combinations(range(4), 2)))
def test_costs_are_looked_at_again_after_each_removal(twins):
    remove = select(model(1), Interacting(twins), Budget(heads=2)).remove["0"]
    assert set(remove) != set(twins)


class Quadratic:
    """Costs 1_S^T F 1_S: what heads do to one another counts."""

    def __init__(self, forms):
        self.forms = forms

    def start(self, block):
        from headwise.prune.importance.fisher import QuadraticBlock

        return QuadraticBlock(self.forms[block.name], block.kept)

    def of(self, remove):
        total = 0.0
        for name, heads in remove.items():
            chosen = np.zeros(len(self.forms[name]))
            chosen[heads] = 1
            total += chosen @ self.forms[name] @ chosen
        return total


def quadratic(sites, seed):
    rng = np.random.default_rng(seed)
    factors = {name: rng.normal(size=(s.heads, 3)) for name, s in sites.items()}
    return Quadratic({name: factor @ factor.T for name, factor in factors.items()})


@given(st.integers(0, 200), st.sampled_from([3, 6, 9]), st.sampled_from(["model", "site", "uniform"]))
@settings(max_examples=60, deadline=None)
def test_exchange_is_never_dearer_and_no_single_swap_improves_it(seed, count, scope):
    sites, keep = model(), Keep(heads={"1": [0]})
    costs = quadratic(sites, seed)
    how = {"scope": scope, "keep": keep}
    plain = select(sites, costs, Budget(heads=count), **how)
    found = select(sites, costs, Budget(heads=count), search=Exchange(), **how)
    assert lost(found) == lost(plain)
    assert costs.of(found.remove) <= costs.of(plain.remove) + 1e-9
    assert found.cost == pytest.approx(costs.of(found.remove), abs=1e-9)
    assert 0 not in found.remove.get("1", [])
    for name, heads in found.remove.items():
        for back in heads:
            for other in set(range(4)) - set(heads) - ({0} if name == "1" else set()):
                swapped = {**found.remove, name: [*(head for head in heads if head != back), other]}
                assert costs.of(swapped) >= costs.of(found.remove) - 1e-9
    if scope != "model":
        assert {n: len(h) for n, h in found.remove.items()} == {n: len(h) for n, h in plain.remove.items()}


def test_exchange_finds_the_pair_that_greedy_cannot_see():
    """Heads 1 and 2 cancel each other; head 0 alone is cheapest and so leads greedy astray."""
    sites = model(layers=1)
    form = np.diag([1.0, 2.0, 2.0, 9.0])
    form[1, 2] = form[2, 1] = -1.9
    costs = Quadratic({"0": form})
    assert select(sites, costs, Budget(heads=2)).remove == {"0": [0, 1]}
    # One swap at a time must pass by a pair that costs less than 3: 0 goes back, 2 goes out.
    found = select(sites, costs, Budget(heads=2), search=Exchange())
    assert found.remove == {"0": [1, 2]}
    # Two heads may go back for two others, before the swap and after it.
    assert found.search == {
        "kind": "exchange", "judged": 8, "start": 3.0, "found": pytest.approx(0.2), "moves": 1, "stopped": "no swap helps"
    }  # fmt: skip
    assert select(sites, costs, Budget(heads=2)).search == {}


def test_exchange_says_where_it_was_ended():
    sites = model(2, 6)
    costs = quadratic(sites, 0)
    free = select(sites, costs, Budget(heads=5), search=Exchange()).search
    ended = select(sites, costs, Budget(heads=5), search=Exchange(swaps=1)).search
    assert (free["moves"], free["stopped"]) == (2, "no swap helps")
    assert (ended["moves"], ended["stopped"]) == (1, "as many swaps as may be made")
    assert ended["start"] == free["start"] > ended["found"] > free["found"]
