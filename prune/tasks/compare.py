"""Two outcomes on the same examples: the drop, how sure it is, and what changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.inference import bootstrap_interval, mcnemar, paired_bootstrap, permutation_p
from headwise.prune.tasks.outcome import Outcome

#: How many of the most changed examples a comparison lists, and how much of each text.
_EXAMPLES = 10
_CHARACTERS = 300
#: What metrics say that no labels stand behind; a reader of a number alone would take them for accuracy.
_MEANINGS = {
    "agreement": "the share of predictions in which the cut model says what the dense one says; no labels judge",
    "cosine": "how near the outputs of the cut model are to those of the dense one (1 is the same); no labels judge",
}


def compare(dense: Outcome, cut: Outcome, *, seed: int = 0, resamples: int = 2000) -> dict[str, Any]:
    """What the cut cost: plain data, as `accuracy.json` keeps it.

    `drop` is positive where the cut model is worse, whatever the metric; `upper` is the drop that the data
    cannot exclude (one-sided, 95 %); `meaning` says what a metric without labels is, and
    where the dense model does no better than one answer for all. Examples are resampled in
    pairs. Right/wrong outcomes are tested by McNemar's exact test, others by swapping the models' scores within examples.

    Args:
        dense: the outcome of the dense model.
        cut: that of the cut model, of the same task on the same texts.
        seed: of the resampling.
        resamples: bootstrap draws.

    Raises:
        BadInput: the outcomes are not of the same task and texts.

    >>> from headwise.analysis.corpus.texts import Text
    >>> texts = [Text(str(i)) for i in range(4)]
    >>> dense, cut = (
    ...     Outcome("made", "accuracy", np.mean(right), np.array(right), True, texts, right)
    ...     for right in ([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0])
    ... )
    >>> compare(dense, cut)["drop"], compare(dense, cut)["flips"]
    (0.25, {'lost': 1, 'gained': 0})
    """
    if (dense.kind, dense.metric, dense.ids) != (cut.kind, cut.metric, cut.ids):
        raise BadInput(
            f"cannot compare {dense.kind} ({dense.metric}, {len(dense.texts)} texts) with {cut.kind} "
            f"({cut.metric}, {len(cut.texts)} texts): judge both models by the same task on the same texts"
        )
    before, after = _scores(dense), _scores(cut)
    if dense.metric in _MEANINGS:
        before, after = np.ones(len(before)), agreement(dense, cut)
    found: dict[str, Any] = {
        "schema": 1,
        "kind": dense.kind,
        "metric": dense.metric,
        "higher_is_better": dense.higher_is_better,
        "n": len(dense.texts),
        "skipped": dict(dense.skipped),
        **_cost(dense, cut, before, after, seed, resamples),
        **_test(dense, before, after, seed),
        "flips": _flips(dense, before, after),
        "changed": _changed(dense, cut, before, after),
    }
    meaning = _MEANINGS.get(dense.metric, "") + _one_answer(dense) or _no_better_than_one_answer(
        dense, found["dense"]["low"]
    )
    if meaning:
        found["meaning"] = meaning
    if dense.labels is not None:
        found["per_class"] = _per_class(dense, before, after)
    if dense.beside:
        found["beside"] = {
            name: {"dense": _number(value), "cut": _number(cut.beside[name])} for name, value in dense.beside.items()
        }
    against = _against_dense(dense, cut)
    if against:
        found["against_dense"] = against
    return found


def _one_answer(dense: Outcome) -> str:
    """That there is nothing to agree about, where the dense model gives one class for all examples."""
    if dense.metric != "agreement" or dense.probabilities is None or len(dense.texts) < 2:
        return ""
    said = {str(prediction) for prediction in dense.predictions}
    return "; the dense one says the same of all, so that tells little" if len(said) == 1 else ""


def _no_better_than_one_answer(dense: Outcome, low: float | None) -> str:
    """That accuracy shows no drop where the dense model knows nothing to lose: labels in another order, no training.

    Args:
        dense: its outcome.
        low: what its accuracy is at least, by its interval.
    """
    if dense.metric != "accuracy" or not all(isinstance(label, str | int) for label in dense.labels or [None]):
        return ""
    label, times = Counter(dense.labels or ()).most_common(1)[0]
    share = times / len(dense.texts)
    if share == 1 or low is None or low > share:
        return ""
    return (
        f"the share of right answers; {label!r} for all would give {share:.1%}, and the dense model is not surely better, so "
        "that little is lost says little: check that the data's labels are the model's, or judge by another metric"
    )


def agreement(dense: Outcome, cut: Outcome) -> np.ndarray:
    """`[example]`, how far the predictions agree: the share of equal ones, or the cosine of vectors."""
    if dense.metric == "cosine":
        first, second = (np.asarray(side.predictions, dtype=np.float64) for side in (dense, cut))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        # Rounded, so that equal vectors are at exactly 1 and differ in nothing.
        return np.asarray(((first * second).sum(axis=1) / np.maximum(norms, 1e-12)).round(9))
    pairs = zip(dense.predictions, cut.predictions, strict=True)
    return np.array([np.mean(np.asarray(a) == np.asarray(b)) for a, b in pairs], dtype=np.float64)


def _scores(outcome: Outcome) -> np.ndarray:
    """Per example, in the metric's direction; weighted so that their mean moves as the metric does."""
    scores = np.asarray(outcome.per_example, dtype=np.float64)
    if outcome.weights is not None:
        scores = scores * outcome.weights / outcome.weights.mean()
    return scores


def _cost(
    dense: Outcome, cut: Outcome, before: np.ndarray, after: np.ndarray, seed: int, resamples: int
) -> dict[str, Any]:
    """Both values and the drop, each with its interval."""
    values = {"dense": dense, "cut": cut}
    if dense.measure is None or dense.rows is None:
        first, second = (before, after) if dense.higher_is_better else (after, before)
        difference = paired_bootstrap(first, second, seed=seed, resamples=resamples)
        single = {
            name: bootstrap_interval(scores, seed=seed, resamples=resamples)
            for name, scores in (("dense", before), ("cut", after))
        }
        sides = {name: _numbers(i.value, i.low, i.high) for name, i in single.items()}
    else:
        rows = {name: np.asarray(outcome.rows, dtype=np.float64) for name, outcome in values.items()}
        names = ("dense", "cut") if dense.higher_is_better else ("cut", "dense")
        difference = paired_bootstrap(rows[names[0]], rows[names[1]], dense.measure, seed=seed, resamples=resamples)
        sides = {
            name: _numbers(outcome.value, *_interval(outcome, rows[name], seed, resamples))
            for name, outcome in values.items()
        }
    return {
        **sides,
        "drop": _number(difference.value),
        "interval": [_number(difference.low), _number(difference.high)],
        "upper": _number(difference.upper),
    }


def _interval(outcome: Outcome, rows: np.ndarray, seed: int, resamples: int) -> tuple[float, float]:
    from scipy.stats import bootstrap

    if len(rows) < 2 or outcome.measure is None:
        return float("nan"), float("nan")
    measure = outcome.measure
    found = bootstrap(
        tuple(rows.T),
        lambda *columns: measure(np.stack(columns, axis=1)),
        paired=True,
        vectorized=False,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def _is_right_or_wrong(outcome: Outcome, scores: np.ndarray) -> bool:
    return outcome.weights is None and outcome.metric != "cosine" and bool(np.isin(scores, (0, 1)).all())


def _test(dense: Outcome, before: np.ndarray, after: np.ndarray, seed: int) -> dict[str, Any]:
    if _is_right_or_wrong(dense, before) and _is_right_or_wrong(dense, after):
        return {"p": _number(mcnemar(before, after).p), "test": "McNemar, exact"}
    return {"p": _number(permutation_p(before, after, seed=seed)), "test": "permutation within pairs"}


def _flips(dense: Outcome, before: np.ndarray, after: np.ndarray) -> dict[str, int]:
    """Examples that got worse and better: from right to wrong and back, or by their score."""
    worse = after - before if not dense.higher_is_better else before - after
    return {"lost": int((worse > 0).sum()), "gained": int((worse < 0).sum())}


def _per_class(dense: Outcome, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    labels = np.array([str(label) for label in dense.labels or ()])
    return {
        name: {
            "n": int((labels == name).sum()),
            "dense": float(before[labels == name].mean()),
            "cut": float(after[labels == name].mean()),
        }
        for name in sorted(set(labels.tolist()))
    }


def _changed(dense: Outcome, cut: Outcome, before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """The examples whose judgement moved most; by the probability of the label where there is one."""
    size = np.abs(after - before)
    if dense.probabilities is not None and cut.probabilities is not None:
        # Among as many flips as there may be, the surest ones come first.
        size = size + np.abs(cut.probabilities - dense.probabilities).sum(-1) / 2
    order = [int(i) for i in np.argsort(-size, kind="stable")[:_EXAMPLES] if size[i] > 0]
    return [
        {
            "text": dense.texts[i].text[:_CHARACTERS],
            "label": None if dense.labels is None else dense.labels[i],
            "dense": _said(dense.predictions[i]),
            "cut": _said(cut.predictions[i]),
            "score": {"dense": _number(before[i]), "cut": _number(after[i])},
        }
        for i in order
    ]


def _said(prediction: Any) -> Any:
    """A prediction as plain data; a vector or a row of tokens says nothing to a reader."""
    return prediction if isinstance(prediction, str | int | float | None) else None


def _against_dense(dense: Outcome, cut: Outcome) -> dict[str, Any]:
    """How far the cut model says what the dense one said, right or wrong."""
    found: dict[str, Any] = {}
    if dense.labels is not None or dense.metric == "agreement":
        found["agreement"] = _number(agreement(dense, cut).mean())
    if dense.probabilities is not None and cut.probabilities is not None:
        from scipy.special import kl_div

        tiny = np.finfo(np.float64).tiny
        first = np.asarray(dense.probabilities, np.float64)
        second = np.maximum(np.asarray(cut.probabilities, np.float64), tiny)
        # With what rounding took from the sums of both: of equal sums the same, and never below zero.
        found["kl"] = _number(kl_div(first, second).sum(-1).mean())
    return found


def _numbers(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    return {"value": _number(value), "low": _number(low), "high": _number(high)}


def _number(value: Any) -> float | None:
    """A JSON number: what is not finite is not known."""
    return float(value) if np.isfinite(value) else None
