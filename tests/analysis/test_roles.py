import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control

from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.inference.cells import CELLS, cells_of
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import Measured, assign, inferred
from headwise.analysis.roles.broad import broad
from headwise.analysis.roles.confident import EvenWeight, confident
from headwise.analysis.roles.dormant import dormant
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.relation import Role, View
from headwise.analysis.roles.tokens import MARKS
from headwise.analysis.sites import Site
from headwise.analysis.statistics import Statistics

LENGTH = 9
MARK = 7


class Tokenizer:
    def decode(self, ids):
        return "," if ids[0] == MARK else "word"


def tokens_of(lengths, marks=()):
    ids = torch.full((len(lengths), LENGTH), 5)
    valid = torch.arange(LENGTH)[None] < torch.tensor(lengths)[:, None]
    special = torch.zeros_like(valid)
    special[:, 0] = True
    special[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = True
    for text, place in marks:
        ids[text, place] = MARK
    return Tokens(ids, valid, special, ids, torch.zeros(*ids.shape, 2, dtype=torch.long), tokenizer=Tokenizer())


def allowed_of(tokens, causal=False):
    allowed = tokens.valid[:, :, None] & tokens.valid[:, None]
    return allowed & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if causal else allowed


def site(heads=1, kind="self"):
    return Site("0", "a", "a.o", heads, heads, 1, kept=tuple(range(heads)), kind=kind)


LENGTHS, PLACED = [9, 6, 4], [(0, 3), (0, 5), (1, 2)]


def scores(maps, tokens, causal=False, kind="self"):
    one = site(maps.shape[1], kind)
    reducer = RelationMass({"0": one}, ROLES)
    seen = Seen(one, maps, None, tokens.valid, allowed_of(tokens, causal))
    reducer.update(Batch({}, [Text(str(i)) for i in range(len(LENGTHS))], {"": tokens}), {"0": seen})
    return reducer, {name.removeprefix("roles/"): array for name, array in reducer.result().items()}


def relation_by_hand(role, text, query, key, tokens):
    special = bool(tokens.special[text, key])
    same = int(tokens.ids[text, key]) == int(tokens.ids[text, query])
    if role in MARKS or role in ("number", "function-word"):
        # What the marks' own tests check: here only that a comma is one and nothing else is a word.
        return role == "comma" and int(tokens.ids[text, key]) == MARK and not special
    return {
        "above": False,
        "below": False,
        "previous": key == query - 1,
        "next": key == query + 1,
        "self": key == query,
        "window": abs(key - query) <= 3,
        "first-token": key == 0,
        "separator": special and key > 0,
        "punctuation": int(tokens.ids[text, key]) == MARK and not special,
        "repeated-token": same and key != query and not special,
        "duplicate-token": same and key < query,
        "induction": 0 < key <= query
        and int(tokens.ids[text, key - 1]) == int(tokens.ids[text, query])
        and key - 1 < query,
    }[role]


@pytest.mark.parametrize("causal", [False, True])
def test_scores_and_chance_are_the_hand_computed_ones(causal):
    tokens = tokens_of(LENGTHS, PLACED)
    logits = 2 * torch.randn(3, 2, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0))
    allowed = allowed_of(tokens, causal)
    maps = logits.masked_fill(~allowed[:, None], -torch.inf).softmax(-1).nan_to_num(1 / LENGTH)
    _, found = scores(maps, tokens, causal)
    for role in (name for name, one in ROLES.items() if one.relation is not None):
        mass, chance = [], []
        for text, length in enumerate(LENGTHS):
            for query in range(length):
                keys = range(query + 1 if causal else length)
                chosen = [key for key in keys if relation_by_hand(role, text, query, key, tokens)]
                if 0 < len(chosen) < len(keys):
                    mass.append(maps[text, :, query, chosen].sum(-1).numpy())
                    chance.append(len(chosen) / len(keys))
        if not mass:
            assert (role, causal) == ("next", True) or role in (*MARKS, "number", "function-word", "above", "below")
            assert np.isnan(found[f"{role}/score"]).all()
            continue
        np.testing.assert_allclose(found[f"{role}/score"], np.mean(mass, axis=0), atol=1e-6, err_msg=role)
        np.testing.assert_allclose(found[f"{role}/chance"], np.mean(chance), atol=1e-9, err_msg=role)
        np.testing.assert_allclose(found[f"{role}/excess"], np.mean(mass, axis=0) - np.mean(chance), atol=1e-6)
        assert (found[f"{role}/n"] == len(mass)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_uniform_head_is_exactly_at_chance(causal):
    tokens = tokens_of(LENGTHS, PLACED)
    allowed = allowed_of(tokens, causal)
    maps = (allowed / allowed.sum(-1, keepdim=True).clamp(min=1))[:, None]
    _, found = scores(maps, tokens, causal)
    for name, array in found.items():
        if name.endswith("/excess"):
            np.testing.assert_allclose(np.nan_to_num(array), 0, atol=1e-6, err_msg=name)


def test_between_different_sequences_places_mean_nothing():
    tokens = tokens_of(LENGTHS, PLACED)
    _, found = scores(torch.full((3, 1, LENGTH, LENGTH), 1 / LENGTH), tokens, kind="cross")
    for role in ("previous", "next", "self", "window"):
        assert np.isnan(found[f"{role}/score"]).all()
        assert found[f"{role}/n"].tolist() == [0]
    assert np.isfinite(found["punctuation/score"]).all()


def test_relations_need_tokens_only_where_they_read_them():
    view = View(None, None, torch.ones(1, 3, 3, dtype=torch.bool), same=True)
    answers = {name: role.relation(view) is not None for name, role in ROLES.items() if role.relation is not None}
    assert answers == {
        "previous": True, "next": True, "self": True, "window": True, "above": False, "below": False,
        "first-token": False, "separator": False, "punctuation": False,
        **dict.fromkeys((*MARKS, "number", "function-word", "repeated-token", "induction", "duplicate-token"), False),
    }  # fmt: skip


def test_sums_go_to_the_cell_of_the_text():
    tokens = tokens_of(LENGTHS, PLACED)
    reducer, _ = scores(torch.full((3, 1, LENGTH, LENGTH), 1 / LENGTH), tokens)
    rows = reducer.measured("self").rows[:, 0]
    expected = np.zeros(CELLS)
    np.add.at(expected, cells_of([Text("0"), Text("1"), Text("2")]).numpy(), LENGTHS)
    assert np.array_equal(rows, expected)


def sums_of(excess, heads=1, cells=64, noise=0.05, seed=0):
    rows = np.random.default_rng(seed).integers(5, 20, size=(cells, heads)).astype(float)
    per_row = np.asarray(excess) + noise * np.random.default_rng(seed + 1).normal(size=(cells, heads))
    return Measured((0.2 + per_row) * rows, 0.2 * rows, per_row * rows, rows)


def test_a_role_must_be_significant_and_large():
    found = assign({"self": inferred(sums_of([0.5, 0.05, 0.0, 0.11], heads=4))}, ROLES)
    assert found["roles/self/assigned"].tolist() == [True, False, False, True]
    assert found["roles/self/q"][1] < 1e-6
    low, high = found["roles/self/low"], found["roles/self/high"]
    assert (low < found["roles/self/excess"]).all()
    assert (found["roles/self/excess"] < high).all()
    large_but_noisy = assign({"self": inferred(sums_of(0.15, cells=4, noise=1.0, seed=3))}, ROLES)
    assert large_but_noisy["roles/self/excess"] > 0.1
    assert not large_but_noisy["roles/self/assigned"].any()


def test_false_discoveries_are_controlled_over_heads_and_roles():
    tests = {name: inferred(sums_of(0.0, heads=50, noise=1.0, seed=i)) for i, name in enumerate(("self", "next"))}
    found = assign(tests, ROLES, effect=-1.0)
    p = np.concatenate([tests["self"]["p"], tests["next"]["p"]])
    q = np.concatenate([found["roles/self/q"], found["roles/next/q"]])
    np.testing.assert_allclose(q, false_discovery_control(p))
    assert (p < 0.05).sum() > 0
    assert not found["roles/self/assigned"].any()


def test_several_roles_a_head_and_the_strongest_is_primary():
    tests = {
        "self": inferred(sums_of([0.2, 0.0, 0.5], heads=3)),
        "first-token": inferred(sums_of([0.4, 0.0, 0.3], heads=3)),
    }
    found = assign(tests, ROLES)
    assert found["roles/self/assigned"].tolist() == [True, False, True]
    assert found["roles/first-token/assigned"].tolist() == [True, False, True]
    assert found["roles/primary"].tolist() == [1, -1, 0]


def test_a_window_is_more_than_its_best_single_place():
    tests = {"previous": inferred(sums_of([0.9, 0.3], heads=2)), "window": inferred(sums_of([0.6, 0.8], heads=2))}
    found = assign(tests, ROLES)
    assert found["roles/window/assigned"].tolist() == [False, True]
    assert found["roles/previous/assigned"].tolist() == [True, True]
    roles = ROLES | {"window": Role("window", "")}
    assert assign(tests, roles)["roles/window/assigned"].tolist() == [True, True]


def test_broad_is_neither_uniform_nor_focused():
    rows = np.full((40, 4), 10.0)
    n = np.log(64)
    below = np.array([0.0, 0.002, 0.3, 2.0]) * np.random.default_rng(0).uniform(0.9, 1.1, size=(40, 1))
    sums = broad(((1 - below / n) * rows, rows), (below * rows, rows))
    tested = inferred(sums)
    # The last head is focused: three quarters of the entropy of a uniform one are not broad.
    np.testing.assert_allclose(tested["score"], np.sqrt(below / 2).mean(0) * [1, 1, 1, 0], atol=1e-9)
    assert tested["chance"].tolist() == [0.0] * 4
    np.testing.assert_allclose(tested["score"] - tested["chance"], tested["excess"])
    assert assign({"broad": inferred(sums)}, ROLES)["roles/broad/assigned"].tolist() == [False, False, True, False]


@pytest.mark.parametrize("causal", [False, True])
def test_confident_is_the_largest_weight_over_that_of_an_indifferent_head(causal):
    tokens, one = tokens_of(LENGTHS, PLACED), site(2)
    allowed = allowed_of(tokens, causal)
    logits = 9 * torch.randn(3, 2, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0))
    logits[:, 1] *= 0.05
    maps = logits.masked_fill(~allowed[:, None], -torch.inf).softmax(-1).nan_to_num(1 / LENGTH)
    even, statistics = EvenWeight({"0": one}), Statistics({"0": one})
    contexts = torch.ones(3, LENGTH, 2, 1)
    for part in (slice(0, 4), slice(4, LENGTH)):
        seen = Seen(one, maps[:, :, part], contexts[:, part], tokens.valid[:, part], allowed[:, part], start=part.start)
        for reducer in (even, statistics):
            reducer.update(Batch({}, [Text(str(i)) for i in range(3)], {"": tokens}), {"0": seen})
    found = confident(statistics.by_cell("confidence"), even.sums.numpy())
    firm, chance = [], []
    for text, length in enumerate(LENGTHS):
        for query in range(length):
            keys = list(range(query + 1 if causal else length))
            targets = [key for key in keys if key == 0 or not tokens.special[text, key]]
            firm.append(maps[text, :, query, targets].amax(-1).numpy())
            chance.append(1 / len(keys))
    assert found.rows.sum(0).tolist() == [len(chance)] * 2
    np.testing.assert_allclose(found.score.sum(0) / len(chance), np.mean(firm, axis=0), atol=1e-6)
    np.testing.assert_allclose(found.chance.sum(0) / len(chance), np.mean(chance), atol=1e-6)
    assert found.eligible.tolist() == [True, False]


def test_confident_on_what_has_a_role_is_no_role_of_its_own():
    tests = {
        "first-token": inferred(sums_of([0.8, 0.2], heads=2)),
        "confident": inferred(sums_of([0.85, 0.6], heads=2)),
    }
    assert assign(tests, ROLES)["roles/confident/assigned"].tolist() == [False, True]


def test_dormant_is_what_contexts_lack_to_those_of_the_site():
    rows = np.full((30, 3), 10.0)
    norms = np.array([0.1, 3.0, 5.9]) * np.random.default_rng(0).uniform(0.9, 1.1, size=(30, 1))
    sums = dormant((norms * rows, rows), np.array([True, False, False]), {"0": site(3)})
    tested = inferred(sums)
    np.testing.assert_allclose(tested["score"], [1 - 0.1 / 3, 0, 0], atol=1e-9)
    assert assign({"dormant": tested}, ROLES)["roles/dormant/assigned"].tolist() == [True, False, False]


def test_what_does_not_apply_is_not_tested():
    nothing = Measured(*(np.zeros((8, 2)) for _ in range(4)))
    found = assign({"next": inferred(nothing), "self": inferred(sums_of([0.5, 0.5], heads=2))}, ROLES)
    assert np.isnan(found["roles/next/q"]).all()
    assert not found["roles/next/assigned"].any()
    assert found["roles/primary"].tolist() == [1, 1]
    assert assign({}, ROLES) == {}


def test_the_table_is_complete():
    assert all(name == role.name and role.says for name, role in ROLES.items())
    assert set(ROLES) >= {
        "previous",
        "next",
        "self",
        "window",
        "separator",
        "first-token",
        "punctuation",
        "coreference",
        "broad",
    }
