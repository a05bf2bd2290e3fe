from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.similarity import (
    IN_PARTS,
    MEASURES,
    Cka,
    Cosine,
    Focused,
    Hellinger,
    JensenShannon,
    Pearson,
    PerText,
    Replaceability,
)  # fmt: skip
from headwise.analysis.sites import Site


def site(name="0", heads=4, kept=None, head_dim=3, **more):
    return Site(name, name, name, heads, heads, head_dim, kept=tuple(range(heads)) if kept is None else kept, **more)


def seen_of(one, maps, contexts=None, lengths=None, causal=False):
    """A site's maps over texts of the given lengths, zero where a map must be."""
    batch, _, length, _ = maps.shape
    lengths = lengths or [length] * batch
    valid = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    allowed = valid[:, :, None] & valid[:, None]
    if causal:
        allowed &= torch.ones(length, length, dtype=torch.bool).tril()
    return Seen(one, maps, contexts, valid, allowed)


def random_maps(batch, heads, length, lengths=None, causal=False, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(batch, heads, length, length, generator=generator)
    probe = seen_of(site(heads=heads), logits, lengths=lengths, causal=causal)
    maps = logits.masked_fill(~probe.allowed[:, None], -torch.inf).softmax(-1)
    # Rows of padding hold what a kernel may leave there: anything.
    return torch.where(probe.queries[:, None, :, None], maps, 1 / length)


def batch_of(count):
    return Batch({}, [Text(f"text {i}") for i in range(count)], {})


def measured(kind, sites, *batches, numbers=None):
    """`numbers`: which texts a batch holds; each batch starts from the first if not given."""
    reducer = MEASURES[kind](sites)
    for i, seen in enumerate(batches):
        count = len(next(iter(seen.values())).queries)
        texts = range(count) if numbers is None else numbers[i]
        reducer.update(Batch({}, [Text(f"text {n}") for n in texts], {}), seen)
    return reducer.result()


def rows_of(seen):
    """Plain loops: every row that counts, as [head, allowed keys] in float64."""
    for one in zip(*seen.values(), strict=True) if isinstance(seen, list) else [tuple(seen.values())]:
        first = one[0]
        for text, query in torch.nonzero(first.queries).tolist():
            keys = first.allowed[text, query]
            yield np.concatenate([part.maps[text, :, query, keys].double().numpy() for part in one])


LENGTHS = [7, 3, 5]


@pytest.fixture(params=[False, True], ids=["both ways", "causal"])
def two_sites(request):
    sites = {"0": site("0"), "1": site("1", heads=2)}
    return sites, {
        name: seen_of(one, random_maps(3, one.heads, 7, LENGTHS, request.param, seed=int(name)), lengths=LENGTHS,
                      causal=request.param)
        for name, one in sites.items()
    }  # fmt: skip


def test_pearson_is_the_centred_correlation(two_sites):
    sites, seen = two_sites
    centred = np.concatenate([rows - 1 / rows.shape[1] for rows in rows_of(seen)], axis=1)
    products = centred @ centred.T
    expected = products / np.sqrt(np.outer(products.diagonal(), products.diagonal()))
    found = measured("pearson", sites, seen)
    np.testing.assert_allclose(found["similarity/pearson"], expected, atol=1e-6)
    assert (found["similarity/pearson_chance"] == 0).all()
    # Rows of maps sum to 1, so without padding and with rows of one length it is numpy's own coefficient.
    one = {"0": seen_of(sites["0"], random_maps(2, 4, 6))}
    flat = one["0"].maps.transpose(0, 1).reshape(4, -1).double().numpy()
    np.testing.assert_allclose(
        measured("pearson", {"0": sites["0"]}, one)["similarity/pearson"], np.corrcoef(flat), atol=1e-6
    )


def test_hellinger_is_the_mean_overlap_and_its_chance_that_of_shuffled_keys(two_sites):
    sites, seen = two_sites
    rows = list(rows_of(seen))
    expected = np.mean([np.sqrt(row) @ np.sqrt(row).T for row in rows], axis=0)
    found = measured("hellinger", sites, seen)
    np.testing.assert_allclose(found["similarity/hellinger"], expected, atol=1e-6)
    generator = np.random.default_rng(0)
    shuffled = []
    for _ in range(400):
        moved = [row[:, generator.permutation(row.shape[1])] for row in rows]
        shuffled.append(np.mean([np.sqrt(a) @ np.sqrt(b).T for a, b in zip(rows, moved, strict=True)], axis=0))
    np.testing.assert_allclose(found["similarity/hellinger_chance"], np.mean(shuffled, axis=0), atol=0.02)


def test_cosine_is_that_of_the_stacked_contexts_and_its_chance_that_of_shuffled_rows():
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(3, 7, 4, 3, generator=generator) + 0.5
    seen = {"0": seen_of(site(), random_maps(3, 4, 7, LENGTHS), contexts, LENGTHS)}
    rows = contexts[seen["0"].queries].double().numpy()
    flat = rows.transpose(1, 0, 2).reshape(4, -1)
    norms = np.linalg.norm(flat, axis=1)
    found = measured("cosine", {"0": site()}, seen)
    np.testing.assert_allclose(found["similarity/cosine"], flat @ flat.T / np.outer(norms, norms), atol=1e-6)
    draws = np.random.default_rng(0)
    shuffled = [
        flat @ rows[draws.permutation(len(rows))].transpose(1, 0, 2).reshape(4, -1).T / np.outer(norms, norms)
        for _ in range(2000)
    ]
    np.testing.assert_allclose(found["similarity/cosine_chance"], np.mean(shuffled, axis=0), atol=0.02)


def test_independent_causal_heads_are_at_chance_and_copies_at_one():
    maps = random_maps(24, 6, 32, causal=True, spread=1.0)
    maps[:, 5] = maps[:, 0]
    full = maps.transpose(0, 1).reshape(6, -1).numpy()
    assert np.corrcoef(full[:5])[~np.eye(5, dtype=bool)].mean() > 0.4
    seen = {"0": seen_of(site(heads=6), maps, maps[..., :3].transpose(1, 2).contiguous(), causal=True)}
    r = measured("pearson", {"0": site(heads=6)}, seen)["similarity/pearson"]
    assert np.abs(r[:5, :5][~np.eye(5, dtype=bool)]).max() < 0.05
    for kind in MEASURES:
        assert measured(kind, {"0": site(heads=6)}, seen)[f"similarity/{kind}"][0, 5] == pytest.approx(1, abs=1e-6)
    overlap = measured("hellinger", {"0": site(heads=6)}, seen)
    excess = (overlap["similarity/hellinger"] - overlap["similarity/hellinger_chance"])[:5, :5]
    assert np.abs(excess[~np.eye(5, dtype=bool)]).max() < 0.02


def test_a_uniform_head_correlates_with_nothing():
    maps = random_maps(2, 4, 6)
    maps[:, 1] = 1 / 6
    r = measured("pearson", {"0": site()}, {"0": seen_of(site(), maps)})["similarity/pearson"]
    assert np.isnan(r[1]).all()
    assert np.isnan(r[:, 1]).all()
    assert np.isfinite(r[0, 2])


def test_one_key_a_row_gives_no_number_instead_of_a_wrong_one():
    maps = torch.ones(2, 4, 1, 1)
    assert np.isnan(measured("pearson", {"0": site()}, {"0": seen_of(site(), maps)})["similarity/pearson"]).all()


@pytest.mark.parametrize("kind", MEASURES)
def test_removed_heads_and_other_widths_have_no_number(kind):
    sites = {"0": site("0", kept=(0, 3)), "1": site("1", heads=2, head_dim=2), "2": site("2", heads=2, kept=())}
    contexts = {"0": torch.rand(3, 7, 2, 3), "1": torch.rand(3, 7, 2, 2), "2": torch.rand(3, 7, 0, 3)}
    seen = {
        name: seen_of(one, random_maps(3, len(one.kept), 7, LENGTHS), contexts[name], LENGTHS)
        for name, one in sites.items()
    }
    for array in measured(kind, sites, seen).values():
        there = np.isfinite(array)
        expected = np.zeros((8, 8), dtype=bool)
        at = np.array([0, 3, 4, 5])
        expected[np.ix_(at, at)] = True
        if kind == "cosine":
            expected[:4, 4:] = expected[4:, :4] = False
        assert np.array_equal(there, expected)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    extra=st.integers(0, 3),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
    order=st.randoms(use_true_random=False),
)
def test_padding_company_and_order_do_not_matter(lengths, extra, causal, seed, order):
    longest, sites = max(lengths), {"0": site()}
    maps = random_maps(len(lengths), 4, longest, lengths, causal, seed)
    contexts = torch.randn(len(lengths), longest, 4, 3, generator=torch.Generator().manual_seed(seed))
    together = {"0": seen_of(sites["0"], maps, contexts, lengths, causal)}
    alone = []
    for i, length in enumerate(lengths):
        grown = torch.nn.functional.pad(maps[i : i + 1, :, :length, :length], (0, extra, 0, extra), value=0.25)
        grown[:, :, :length, length:] = 0
        context = torch.nn.functional.pad(contexts[i : i + 1, :length], (0, 0, 0, 0, 0, extra), value=9.0)
        alone.append({"0": seen_of(sites["0"], grown, context, [length], causal)})
    places = list(range(len(lengths)))
    order.shuffle(places)
    for kind in MEASURES:
        one = measured(kind, sites, together)
        other = measured(kind, sites, *(alone[i] for i in places), numbers=[[i] for i in places])
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, atol=1e-5, err_msg=name)


def test_the_table_names_what_comes_out():
    assert list(MEASURES) == ["pearson", "cosine", "hellinger", "jensen_shannon", "cka"]
    assert [Pearson, Cosine, Hellinger, JensenShannon, Cka] == list(MEASURES.values())
    assert {"pearson", "cosine", "hellinger", "jensen_shannon"} == IN_PARTS
    for name, kind in MEASURES.items():
        found = set(kind({"0": site()}).result())
        assert found - {f"similarity_error/{name}"} == {f"similarity/{name}", f"similarity/{name}_chance"}


def streams(count, length, special=()):
    ids = torch.arange(length).repeat(count, 1)
    valid = torch.ones_like(ids, dtype=torch.bool)
    marked = torch.zeros_like(valid)
    marked[:, list(special)] = True
    return Tokens(ids, valid, marked, ids, torch.zeros(count, length, 2, dtype=torch.long))


def divergence(p, q):
    # scipy's distance is the root of the divergence.
    return jensenshannon(p, q) ** 2


def test_jensen_shannon_is_scipys():
    sites = {"0": site(heads=3), "1": site("1", heads=2)}
    seen = {
        "0": seen_of(sites["0"], random_maps(3, 3, 7, LENGTHS, seed=1), lengths=LENGTHS),
        "1": seen_of(sites["1"], random_maps(3, 2, 7, LENGTHS, seed=2), lengths=LENGTHS),
    }
    every = JensenShannon(sites, rows=None)
    every.update(batch_of(3), seen)
    found = every.result()
    rows = [np.concatenate(row) for row in zip(rows_of({"0": seen["0"]}), rows_of({"1": seen["1"]}), strict=True)]
    wanted = np.mean([[[divergence(p, q) for q in row] for p in row] for row in rows], axis=0)
    np.testing.assert_allclose(found["similarity/jensen_shannon"], 1 - wanted / np.log(2), atol=1e-5)
    assert (found["similarity_error/jensen_shannon"] == 0).all()


def test_drawn_rows_cover_the_whole_and_come_with_their_error():
    one = {"0": site(heads=4)}
    generator = torch.Generator().manual_seed(5)
    spread = 3 * torch.rand(20, 1, 24, 1, generator=generator)
    maps = (spread * torch.randn(20, 4, 24, 24, generator=generator)).softmax(-1)
    seen = {"0": seen_of(one["0"], maps)}
    whole = JensenShannon(one, rows=None)
    whole.update(batch_of(20), seen)
    exact = whole.result()["similarity/jensen_shannon"]
    inside = []
    for seed in range(40):
        drawn = JensenShannon(one, rows=4, seed=seed)
        drawn.update(batch_of(20), seen)
        found = drawn.result()
        off = ~np.eye(4, dtype=bool)
        error = found["similarity_error/jensen_shannon"][off]
        assert (error > 0).all()
        inside.append(np.abs(found["similarity/jensen_shannon"][off] - exact[off]) <= 1.96 * error)
    # The pairs of one draw are not independent: 40 draws of 6 pairs leave a few points around 95 %.
    assert 0.85 <= np.mean(inside) <= 1.0


def test_jensen_shannon_of_unrelated_heads_is_at_chance():
    one = {"0": site(heads=6)}
    measure = JensenShannon(one, rows=None)
    measure.update(batch_of(12), {"0": seen_of(one["0"], random_maps(12, 6, 30, seed=3))})
    found = measure.result()
    off = ~np.eye(6, dtype=bool)
    difference = (found["similarity/jensen_shannon"] - found["similarity/jensen_shannon_chance"])[off]
    assert np.abs(difference).max() < 0.02


def contexts_of(heads=3, rows=40, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, heads, width, generator=generator) @ torch.randn(width, width, generator=generator)


def test_cka_is_the_formula_and_sees_through_rotation():
    contexts = contexts_of()
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1))).Q
    contexts[:, :, 2] = 3 * contexts[:, :, 0] @ turn + 5
    one = {"0": site(heads=3, head_dim=4)}
    valid = torch.arange(40)[None] < torch.tensor([[40], [31]])
    seen = {"0": Seen(one["0"], None, contexts, valid, valid[:, :, None] & valid[:, None])}
    found = measured("cka", one, seen)
    rows = contexts[valid].double().numpy()
    centred = rows - rows.mean(0)
    grams = [x @ x.T for x in centred.transpose(1, 0, 2)]
    wanted = [[np.sum(g * h) / np.linalg.norm(g) / np.linalg.norm(h) for h in grams] for g in grams]
    np.testing.assert_allclose(found["similarity/cka"], wanted, atol=1e-5)
    assert found["similarity/cka"][0, 2] == pytest.approx(1, abs=1e-5)
    n = len(rows)
    size = [np.trace(g) / np.linalg.norm(g) for g in grams]
    chance = np.outer(size, size) / (n - 1)
    np.testing.assert_allclose(found["similarity/cka_chance"], chance, atol=1e-5)
    order = np.random.default_rng(0)
    shuffled = [np.sum(grams[0] * grams[1][np.ix_(p, p)]) for p in (order.permutation(n) for _ in range(2000))]
    drawn = np.mean(shuffled) / np.linalg.norm(grams[0]) / np.linalg.norm(grams[1])
    assert drawn == pytest.approx(chance[0, 1], rel=0.05)


def test_the_sample_of_cka_is_the_same_in_any_order():
    one = {"0": site(heads=3, head_dim=4)}
    contexts = torch.cat([contexts_of(seed=s) for s in range(4)])
    every = torch.ones(8, 40, 40, dtype=torch.bool)
    texts = [Text(f"text {i}") for i in range(8)]
    found = []
    for order in (range(8), reversed(range(8))):
        cka = Cka(one, rows=50)
        for i in order:
            part = slice(i, i + 1)
            seen = Seen(one["0"], None, contexts[part], every[part, :, 0], every[part])
            cka.update(Batch({}, texts[part], {}), {"0": seen})
        found.append(cka.result())
        assert len(cka._kept["", "self"].keys) == 50
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
    whole = Cka(one, rows=10_000)
    whole.update(Batch({}, texts, {}), {"0": Seen(one["0"], None, contexts, every[:, :, 0], every)})
    exact, error = whole.result()["similarity/cka"], found[0]["similarity_error/cka"]
    assert np.all(np.abs(found[0]["similarity/cka"] - exact) <= 4 * error + 0.15)


def test_replaceability_is_the_residual_of_least_squares():
    contexts = contexts_of(heads=4, rows=300)
    contexts[:, :, 3] = contexts[:, :, 1] @ torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    contexts[:, :, 2] = 0.5 * contexts[:, :, 0] + contexts[:, :, 2] + 7
    block = torch.nn.Module()
    block.o = torch.nn.Linear(16, 10)
    one = {"0": Site("0", "", "o", 4, 4, 4, kept=(0, 1, 2, 3))}
    every = torch.ones(2, 300, 300, dtype=torch.bool)
    measure = Replaceability(one, block)
    measure.update(batch_of(2), {"0": Seen(one["0"], None, contexts, every[:, :, 0], every)})
    found = measure.result()["statistics/replaceability"]
    rows = contexts.reshape(600, 4, 4).double().numpy()
    rows = rows - rows.mean(0)
    weight = block.o.weight.detach().double().numpy().reshape(10, 4, 4)
    for head in range(4):
        output = rows[:, head] @ weight[:, head].T
        others = rows[:, [h for h in range(4) if h != head]].reshape(600, -1)
        left = output - others @ np.linalg.lstsq(others, output, rcond=1e-5)[0]
        assert found[head] == pytest.approx(np.square(left).sum() / np.square(output).sum(), abs=2e-3)
    assert found[1] < 1e-2
    assert found[3] < 1e-2
    assert found[0] > 0.3


def test_ordinary_tokens_alone_are_compared():
    one = {"0": site(heads=2)}
    maps = random_maps(2, 2, 8, seed=4)
    tokens = {"": streams(2, 8, special=(0, 7))}
    # Both heads park half of their attention on the ends: nothing else may count.
    parked = maps * torch.tensor([0.0, 1, 1, 1, 1, 1, 1, 0])
    parked = 0.5 * parked / parked.sum(-1, keepdim=True)
    parked[..., 0], parked[..., 7] = 0.3, 0.2
    texts = [Text("a"), Text("b")]
    focused = Focused(Pearson(one))
    focused.update(Batch({}, texts, tokens), {"0": seen_of(one["0"], parked)})
    inner = maps[:, :, 1:7, 1:7]
    plain = Pearson(one)
    plain.update(Batch({}, texts, {}), {"0": seen_of(one["0"], inner / inner.sum(-1, keepdim=True))})
    np.testing.assert_allclose(focused.result()["similarity/pearson"], plain.result()["similarity/pearson"], atol=1e-5)
    pooled = Pearson(one)
    pooled.update(Batch({}, texts, tokens), {"0": seen_of(one["0"], parked)})
    assert pooled.result()["similarity/pearson"][0, 1] > focused.result()["similarity/pearson"][0, 1] + 0.2


def test_a_row_with_nothing_but_rounding_left_counts_for_no_head():
    one = {"0": site(heads=2)}
    maps = random_maps(1, 2, 6, seed=4)
    tokens = {"": streams(1, 6, special=(0,))}
    # What is left of this row are numbers below the smallest that float32 holds in full: they do not scale to 1.
    maps[0, 1, 3] = torch.tensor([1.0, 3e-45, 1e-45, 0.0, 4e-45, 0.0])
    focused, without = Focused(Pearson(one)), Focused(Pearson(one))
    batch, seen = Batch({}, [Text("a")], tokens), seen_of(one["0"], maps)
    focused.update(batch, {"0": seen})
    rows = torch.arange(6)[None] != 3
    left = replace(seen, queries=seen.queries & rows, allowed=seen.allowed & rows[..., None])
    without.update(batch, {"0": left})
    found, wanted = (measure.result()["similarity/pearson"] for measure in (focused, without))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", MEASURES)
def test_text_by_text_is_the_mean_over_texts(kind):
    one = {"0": site(heads=3, head_dim=4)}
    contexts = contexts_of(rows=7)
    seen = {"0": seen_of(one["0"], random_maps(2, 3, 7, seed=6), contexts)}
    measure = PerText(lambda: MEASURES[kind](one))
    texts = [Text("text 0"), Text("text 1")]
    measure.update(Batch({}, texts, {}), seen)
    alone = []
    for i in range(2):
        single = MEASURES[kind](one)
        whole = seen["0"]
        part = slice(i, i + 1)
        alone_seen = Seen(one["0"], whole.maps[part], whole.contexts[part], whole.queries[part], whole.allowed[part])
        single.update(Batch({}, texts[part], {}), {"0": alone_seen})
        alone.append(single.result()[f"similarity/{kind}"])
    np.testing.assert_allclose(measure.result()[f"similarity/{kind}"], np.mean(alone, axis=0), atol=1e-7)


@pytest.mark.parametrize("per_text", [False, True])
@pytest.mark.parametrize("kind", sorted(IN_PARTS))
def test_blocks_sum_to_the_whole(kind, per_text):
    one = {"0": site(heads=3)}
    measure = PerText(lambda: MEASURES[kind](one), 5) if per_text else MEASURES[kind](one, blocks=5)
    contexts = torch.randn(9, 6, 3, 3, generator=torch.Generator().manual_seed(1))
    measure.update(batch_of(9), {"0": seen_of(one["0"], random_maps(9, 3, 6, seed=8), contexts)})
    blocks, likeness = getattr(measure, "gram", measure).parts()
    assert len(blocks) == 5
    assert blocks.reshape(5, -1).any(1).sum() > 1
    # What is clustered anew on resampled texts is the measure itself.
    np.testing.assert_allclose(likeness(blocks.sum(0)), measure.result()[f"similarity/{kind}"], atol=1e-5)
    if hasattr(measure, "gram"):
        np.testing.assert_allclose(blocks.sum(0), measure.gram.products, atol=1e-5)


def test_few_heads_are_compared_in_every_row():
    seen = {"0": seen_of(site(), random_maps(3, 4, 7, LENGTHS), lengths=LENGTHS)}
    every = JensenShannon({"0": site()}, rows=None)
    every.update(batch_of(3), seen)
    found = measured("jensen_shannon", {"0": site()}, seen)
    for name, array in every.result().items():
        np.testing.assert_array_equal(found[name], array)
    # A model of many heads takes the least number of rows.
    assert JensenShannon({"0": site(heads=300)}).rows == 4
    assert JensenShannon({"0": site(heads=72)}).rows == 12
