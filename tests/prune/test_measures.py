"""Measures that intervals ask for thousands of times: equal to the library's, whose own ways take too long for that."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from headwise.analysis.corpus.texts import Text
from headwise.prune.tasks import TASKS, compare, multi_label, ranked
from headwise.prune.tasks.metrics import METRICS, value_of
from headwise.prune.tasks.outcome import Outcome
from tests.prune import test_labelled_tasks as labelled

OF_CLASSES = {
    "balanced-accuracy": lambda right, said: sk.recall_score(
        right, said, labels=np.unique(right), average="macro", zero_division=0
    ),
    "macro-f1": lambda right, said: sk.f1_score(right, said, average="macro", zero_division=0),
    "matthews": sk.matthews_corrcoef,
}


def slow(*_, **__):
    pytest.fail("asked for every draw")


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_metrics_of_classes_are_those_of_scikit_learn_also_of_few_and_constant_answers(metric):
    draw = np.random.default_rng(0)
    for _ in range(200):
        rows = draw.integers(0, draw.integers(1, 6, 2), (draw.integers(1, 12), 2)).astype(float)
        wanted = OF_CLASSES[metric](rows[:, 0], rows[:, 1])
        assert METRICS[metric](rows) == pytest.approx(wanted, abs=1e-12)
        assert value_of(metric, *rows.T) == METRICS[metric](rows)


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_a_comparison_by_classes_does_not_go_the_slow_way(metric, monkeypatch):
    draw = np.random.default_rng(0)
    right, said = draw.integers(0, 3, 60), draw.integers(0, 3, 60)
    said[:30] = right[:30]
    for name in ("recall_score", "f1_score", "matthews_corrcoef"):
        monkeypatch.setattr(sk, name, slow)
    outcome = Outcome(
        "made", metric, value_of(metric, right, said), (right == said).astype(float), True,
        [Text(str(i)) for i in range(60)], said.tolist(), rows=np.stack([right, said], axis=1), measure=METRICS[metric],
    )  # fmt: skip
    found = compare(outcome, outcome, resamples=20)
    assert found["dense"]["low"] < found["dense"]["value"] < found["dense"]["high"]


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_f1_is_that_of_scikit_learn_also_of_classes_that_nobody_names(average):
    draw = np.random.default_rng(0)
    for _ in range(100):
        rows = (draw.random((draw.integers(1, 9), 8)) < draw.choice([0.0, 0.1, 0.5])).astype(float)
        right, said = np.split(rows.astype(int), 2, axis=1)
        wanted = sk.f1_score(right, said, average=average, zero_division=0)
        assert multi_label.f1(rows, average) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_correlations_are_those_of_scipy_also_with_ties(metric):
    draw, function = np.random.default_rng(0), {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    measure = ranked.correlation(metric)
    for _ in range(50):
        rows = np.stack([np.arange(9) % draw.integers(2, 9), draw.integers(0, 5, 9) + np.eye(9)[0]], axis=1).astype(
            float
        )
        assert measure(rows) == pytest.approx(function(rows[:, 0], rows[:, 1]).statistic, abs=1e-12)
    for constant in (np.ones((4, 2)), np.stack([np.ones(4), np.arange(4.0)], axis=1), np.ones((1, 2))):
        assert measure(constant) == 0


@pytest.mark.parametrize(("kind", "metric"), [("multi-label", "macro-f1"), ("text-regression", "spearman")])
def test_a_comparison_does_not_go_the_slow_way(kind, metric, monkeypatch):
    model, texts = labelled.MODELS[kind](), labelled.corpus(kind)
    outcome = TASKS[kind](metric=metric).fit(model, labelled.tokenizer(), texts).judge(model, texts)
    monkeypatch.setattr(sk, "f1_score", slow)
    for name in ("spearmanr", "pearsonr"):
        monkeypatch.setattr(ranked, name, slow, raising=False)
    found = compare(outcome, outcome, resamples=20)
    assert found["dense"]["low"] < found["dense"]["value"] < found["dense"]["high"]
