import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headwise.analysis.errors import BadInput
from headwise.analysis.inference import (
    benjamini_hochberg,
    bootstrap_interval,
    cell_interval,
    mcnemar,
    paired_bootstrap,
    paired_proportion_bound,
    permutation_p,
    ratio_interval,
    sign_flip_p,
    split_half_reliability,
)


def test_the_bootstrap_interval_is_scipys():
    values = np.random.default_rng(0).exponential(size=200)
    ours = bootstrap_interval(values, seed=1, resamples=5000)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=5000, rng=2)
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.01)
    assert ours.low < ours.value < ours.upper < ours.high


def test_intervals_cover_the_truth():
    generator = np.random.default_rng(3)
    found = bootstrap_interval(generator.normal(5, 2, size=(80, 400)), seed=4, resamples=800)
    covered = (found.low <= 5) & (found.high >= 5)
    assert 0.90 < covered.mean() < 0.98
    assert 0.90 < (found.upper >= 5).mean() < 0.98


def test_missing_values_are_left_out_and_counted():
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 4.0]])
    found = bootstrap_interval(values, seed=0)
    assert found.value.tolist() == [2.0, 4.0]
    assert found.n.tolist() == [2, 1]
    assert found.excluded.tolist() == [1, 2]
    assert np.isnan(found.low[1])
    assert np.isnan(found.upper[1])
    assert found.low[0] == 1


@pytest.mark.parametrize("values", [[], [np.nan, np.nan], np.empty((0, 3))])
def test_nothing_measured_gives_nan(values):
    found = bootstrap_interval(values, seed=0)
    assert np.isnan(found.value).all()
    assert np.isnan(found.low).all()
    assert np.all(found.n == 0)


def test_one_observation_has_a_value_and_no_interval():
    found = bootstrap_interval([7.0])
    assert found.value == 7
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_a_ratio_weighs_cells_by_what_they_hold():
    found = ratio_interval([[1.0, 0.0], [9.0, 3.0]], [1.0, 9.0], seed=0)
    assert found.value.tolist() == [1.0, 0.3]
    assert found.low[0] == found.high[0] == 1
    assert found.low[1] == 0


def test_empty_cells_do_not_count():
    full = ratio_interval([1.0, 2.0, 0.0], [2.0, 2.0, 0.0], seed=0)
    assert (full.value, full.n) == (0.75, 2)


def test_a_ratio_of_wrong_shapes_is_refused():
    with pytest.raises(BadInput, match=r"\(2, 2\).*\(3,\)"):
        ratio_interval(np.ones((2, 2)), np.ones(3))


def test_chunks_of_resamples_change_nothing(monkeypatch):
    sums = np.random.default_rng(1).random((20, 2, 5))
    whole = cell_interval(sums, lambda t: t[:, 0] / t[:, 1], seed=3, resamples=500)
    monkeypatch.setattr("headwise.analysis.inference.intervals._BUDGET", 7)
    parts = cell_interval(sums, lambda t: t[:, 0] / t[:, 1], seed=3, resamples=500)
    np.testing.assert_allclose(whole.low, parts.low, rtol=1e-12)


@pytest.mark.parametrize("cells", [40, 200])
def test_the_sign_flip_tail_is_that_of_100000_permutations(cells):
    generator = np.random.default_rng(cells)
    sums = generator.exponential(size=(cells, 12)) * generator.choice([-1, 1], size=(cells, 12))
    sums += np.linspace(-0.1, 0.35, 12)
    signs = generator.integers(0, 2, size=(100_000, cells), dtype=np.int8).astype(np.float32) * 2 - 1
    drawn = (signs @ sums.astype(np.float32) >= sums.sum(axis=0)).mean(axis=0)
    ours = sign_flip_p(sums)
    seen = drawn > 1e-3
    assert seen.sum() >= 6
    # Three standard errors of the drawn share, and 5 % for what is normal about ours.
    np.testing.assert_array_less(np.abs(ours - drawn)[seen], (3 * np.sqrt(drawn / 100_000) + 0.05 * drawn)[seen])
    assert (ours[~seen] < 2e-3).all()


def tail_by_counting(differences):
    """P(Σ±d ≥ Σd) of whole numbers, by adding one coin after the other: exact at any depth of the tail."""
    total = int(np.abs(differences).sum())
    ways = np.zeros(2 * total + 1)
    ways[total] = 1
    for size in np.abs(differences):
        ways = (np.roll(ways, size) + np.roll(ways, -size)) / 2
    return ways[total + int(differences.sum()) :].sum()


SIZES = {
    "all equal": lambda n, generator: np.ones(n, dtype=int),
    "even": lambda n, generator: generator.integers(1, 60, n),
    "a few dominate": lambda n, generator: np.r_[np.full(5, 90), generator.integers(1, 5, n - 5)],
    "heavy tails": lambda n, generator: (5 * generator.pareto(1.2, n) + 1).astype(int).clip(1, 300),
}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("cells", [24, 100])
def test_the_far_tail_is_monotone_and_never_too_small(kind, cells):
    sizes = SIZES[kind](cells, np.random.default_rng(cells))
    # From an even split on, one more cell turns positive in every step.
    order = np.random.default_rng(1).permutation(cells)
    steps = [np.where(np.isin(np.arange(cells), order[:k]), 1, -1) * sizes for k in range(cells // 2, cells + 1)]
    ours = sign_flip_p(np.array(steps, dtype=float).T)
    exact = np.array([tail_by_counting(step) for step in steps])
    assert exact[-1] == pytest.approx(0.5**cells)
    assert (np.diff(ours) < 0).all()
    small = exact < 0.2
    assert small.sum() >= 5
    assert (ours[small] >= 0.97 * exact[small]).all()
    moderate = small & (exact > 1e-4)
    assert (ours[moderate] <= 2 * exact[moderate]).all()


def test_few_cells_try_every_sign_pattern():
    values = np.array([0.5, 1.5, -0.2, 0.9, 2.0])
    theirs = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
    )
    assert sign_flip_p(values) == pytest.approx(theirs.pvalue)


def test_sign_flip_without_evidence():
    found = sign_flip_p(np.array([[0.0, np.nan, 1.0], [0.0, np.nan, np.nan]]))
    assert found[0] == 1
    assert np.isnan(found[1])
    assert found[2] == 0.5
    assert np.isnan(sign_flip_p(np.empty((0, 2)))).all()


def test_sign_flip_p_is_uniform_under_the_null():
    p = sign_flip_p(np.random.default_rng(0).normal(size=(100, 2000)))
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_benjamini_hochberg_by_hand_and_with_gaps():
    q = benjamini_hochberg([[0.01, np.nan], [0.03, 0.02]])
    assert q[0, 0] == pytest.approx(0.03)
    assert q[1].tolist() == pytest.approx([0.03, 0.03])
    assert np.isnan(q[0, 1])
    assert np.isnan(benjamini_hochberg([np.nan])).all()
    assert benjamini_hochberg([]).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_adjusting_keeps_the_order_and_never_helps(p):
    p = np.array(p)
    q = benjamini_hochberg(p)
    assert (q >= p - 1e-12).all()
    assert (np.diff(q[np.argsort(p)]) >= -1e-12).all()


def test_a_paired_difference_is_narrower_than_an_unpaired_one():
    generator = np.random.default_rng(5)
    easy = generator.normal(0, 5, size=300)
    found = paired_bootstrap(easy + 0.5 + generator.normal(0, 0.5, 300), easy, seed=1)
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.2
    assert found.upper < found.high


def test_a_paired_metric_sees_whole_examples():
    a, b = np.array([[2.0, 1.0], [4.0, 1.0], [6.0, 2.0]]), np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 2.0]])
    found = paired_bootstrap(a, b, lambda x: x[:, 0].sum() / x[:, 1].sum(), seed=0, resamples=200)
    assert found.value == pytest.approx(1.5)
    assert 1.0 <= found.low <= found.high <= 2.0


def test_paired_values_that_are_missing_or_few():
    assert np.isnan(paired_bootstrap([], []).value)
    assert np.isnan(paired_bootstrap([], [], np.median).value)
    one = paired_bootstrap([2.0], [1.0], np.median)
    assert one.value == 1
    assert np.isnan(one.low)
    gap = paired_bootstrap([1.0, np.nan, 3.0], [0.0, 1.0, 2.0])
    assert (gap.value, gap.n, gap.excluded) == (1.0, 2, 1)
    with pytest.raises(BadInput, match="same"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_equal_predictions_still_leave_a_drop_that_cannot_be_excluded():
    found = paired_bootstrap(np.ones(100), np.ones(100))
    assert found.value == found.low == found.high == 0
    assert found.upper == pytest.approx(1.6449**2 / (100 + 1.6449**2), rel=1e-3)


def test_the_proportion_bound_is_tangos():
    upper = paired_proportion_bound(12, 2, 44, level=0.975)
    lower = -paired_proportion_bound(2, 12, 44, level=0.975)
    assert lower < 10 / 44 < upper
    # The bound solves the score equation: check against a likelihood maximised by brute force.
    for delta, sign in ((upper, -1), (lower, 1)):
        gains = np.linspace(max(0, -delta) + 1e-9, (1 - delta) / 2 - 1e-9, 200_001)
        likelihood = 2 * np.log(gains) + 12 * np.log(gains + delta) + 30 * np.log1p(-2 * gains - delta)
        gain = gains[np.argmax(likelihood)]
        z = (10 - 44 * delta) / np.sqrt(44 * (2 * gain + delta * (1 - delta)))
        assert z == pytest.approx(sign * 1.959964, abs=1e-3)
    assert paired_proportion_bound(5, 0, 5) == 1
    assert np.isnan(paired_proportion_bound(0, 0, 0))
    assert paired_proportion_bound(0, 5, 5) < 0


def test_the_proportion_bound_covers():
    generator = np.random.default_rng(2)
    draws = generator.multinomial(150, [0.04, 0.02, 0.94], size=600)
    bounds = np.array([paired_proportion_bound(int(lost), int(gained), 150) for lost, gained, _ in draws])
    assert 0.92 < (bounds >= 0.02).mean() <= 0.99


def test_mcnemar_is_a_binomial_test_on_the_changes():
    a = [True] * 10 + [False] * 3 + [True] * 20
    b = [False] * 10 + [True] * 3 + [True] * 20
    found = mcnemar(a, b)
    assert (found.lost, found.gained) == (10, 3)
    assert found.p == pytest.approx(stats.binomtest(10, 13).pvalue)
    assert mcnemar([True], [True]).p == 1
    assert mcnemar([], []).p == 1


def test_permutation_p_against_the_t_test():
    generator = np.random.default_rng(1)
    a = generator.normal(0.3, 1, 60)
    b = np.zeros(60)
    assert permutation_p(a, b, seed=0) == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.01)
    greater = permutation_p(a, b, seed=0, alternative="greater")
    assert greater == pytest.approx(permutation_p(a, b, seed=0) / 2, rel=0.3)
    assert np.isnan(permutation_p([], []))
    assert permutation_p([1.0, 2.0], [1.0, 2.0]) == 1
    assert permutation_p([2.0], [1.0]) == 1
    assert permutation_p([2.0], [1.0], alternative="greater") == 0.5


def test_reliability_is_high_for_real_differences_and_low_for_noise():
    generator = np.random.default_rng(0)
    truth = generator.random(50)
    real = split_half_reliability(generator.binomial(10, truth, size=(60, 50)), np.full(60, 10.0))
    noise = split_half_reliability(generator.binomial(10, 0.5, size=(60, 50)), np.full(60, 10.0))
    assert real > 0.97
    assert abs(noise) < 0.5
    assert np.isnan(split_half_reliability(np.ones((3, 5)), np.ones(3)))
    assert np.isnan(split_half_reliability(np.ones((0, 5)), np.ones((0, 5))))
    assert np.isnan(split_half_reliability(np.ones((8, 5)), np.ones(8)))


def test_halves_that_contradict_each_other_are_not_stepped_up():
    # All heads have nearly the same total, so what one half has more of the other has less.
    cells = [[0.0, 1.0, 0.5], [1.0, 0.0, 0.5], [0.2, 0.9, 0.4], [0.8, 0.1, 0.5]]
    assert -1 <= split_half_reliability(cells, np.ones(4)) < -0.5


def test_reliability_by_hand():
    """Four cells of two kinds, whose heads' scores correlate at one half."""
    cells = [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 2.0, 1.0]]
    # Halves of equal cells come up in one of three splits and correlate at 0.5, all others at 1.
    r = (0.5 + 1 + 1) / 3
    assert split_half_reliability(cells, np.ones(4), splits=4000) == pytest.approx(2 * r / (1 + r), abs=0.01)


def test_the_same_seed_gives_the_same_numbers():
    values = np.random.default_rng(0).random(30)
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert bootstrap_interval(values, seed=5).low != bootstrap_interval(values, seed=6).low
