"""Two outcomes on the same examples: the drop, its test, what changed."""

import numpy as np
import pytest
from scipy import stats

from headwise.analysis.corpus import Text
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import compare
from headwise.prune.tasks.metrics import METRICS, value_of
from headwise.prune.tasks.outcome import Outcome


def outcome(scores, **options):
    texts = [Text(f"t{i}") for i in range(len(scores))]
    values = np.asarray(scores, dtype=float)
    given = {"kind": "k", "metric": "accuracy", "higher_is_better": True, **options}
    return Outcome(value=values.mean(), per_example=values, texts=texts, predictions=values.tolist(), **given)


def test_right_and_wrong_are_tested_by_mcnemar():
    found = compare(outcome([1] * 10 + [0] * 10), outcome([1] * 2 + [0] * 17 + [1]))
    assert found["drop"] == pytest.approx(0.35)
    assert found["flips"] == {"lost": 8, "gained": 1}
    assert found["p"] == pytest.approx(stats.binomtest(8, 9).pvalue)
    assert found["test"] == "McNemar, exact"
    assert found["interval"][0] < 0.35 < found["upper"] <= 1


def test_lower_is_better_turns_the_drop_round():
    worse = compare(outcome([1.0, 2, 3, 4], higher_is_better=False), outcome([2.0, 3, 4, 5], higher_is_better=False))
    assert worse["drop"] == pytest.approx(1)
    assert worse["flips"] == {"lost": 4, "gained": 0}
    assert worse["test"] == "permutation within pairs"
    assert worse["p"] == pytest.approx(2 / 16)


def test_no_difference_still_leaves_a_drop_that_cannot_be_excluded():
    found = compare(outcome([1] * 90 + [0] * 10), outcome([1] * 90 + [0] * 10))
    assert found["drop"] == 0
    assert 0 < found["upper"] < 0.05
    assert found["changed"] == []


def test_the_examples_that_changed_most_come_first():
    found = compare(outcome([0.0, 0.5, 1.0] * 5), outcome([0.1, 0.5, 0.2] * 5))
    assert [e["text"] for e in found["changed"][:5]] == ["t2", "t5", "t8", "t11", "t14"]
    assert found["changed"][0]["score"] == {"dense": 1.0, "cut": 0.2}
    assert len(found["changed"]) == 10


def test_only_like_is_compared_with_like():
    with pytest.raises(BadInput, match="same task on the same texts"):
        compare(outcome([1, 0]), outcome([1, 0, 1]))
    with pytest.raises(BadInput, match="same task on the same texts"):
        compare(outcome([1, 0]), outcome([1, 0], metric="mrr"))


def test_metrics_of_resamples_that_miss_a_class_are_numbers():
    for metric in METRICS:
        assert np.isfinite(value_of(metric, np.array([0, 0, 0]), np.array([0, 1, 0])))
