import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.batching import Batch
from headwise.analysis.seen import Seen
from headwise.analysis.similarity import MEASURES, Cosine, Hellinger, Pearson
from headwise.analysis.sites import Site
from headwise.analysis.texts import Text


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


def measured(kind, sites, *batches):
    reducer = MEASURES[kind](sites)
    for seen in batches:
        reducer.update(batch_of(len(next(iter(seen.values())).queries)), seen)
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
    order.shuffle(alone)
    for kind in MEASURES:
        one, other = measured(kind, sites, together), measured(kind, sites, *alone)
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, atol=1e-5, err_msg=name)


def test_the_table_names_what_comes_out():
    assert list(MEASURES) == ["pearson", "cosine", "hellinger"]
    assert {Pearson, Cosine, Hellinger} == set(MEASURES.values())
    for name, kind in MEASURES.items():
        assert set(kind({"0": site()}).result()) == {f"similarity/{name}", f"similarity/{name}_chance"}
