"""What kept heads do after a cut, by value: a model whose heads are known, and one head that is made to change."""

import copy

import pytest
import torch

from headwise.prune import cut
from headwise.prune.drift import LOOKED_FOR, TEXTS, head_drift
from tests.analysis.planted import PLACES, PREVIOUS, TWIN, planted_corpus, planted_model, planted_tokenizer


@pytest.fixture(scope="module")
def dense():
    return planted_model()


def drift(dense, smaller, **more):
    return head_drift(dense, smaller, planted_tokenizer(), planted_corpus(TEXTS + 6), batch_size=32, **more)


def test_heads_that_stay_as_they_were_change_nothing(dense):
    smaller = cut(copy.deepcopy(dense), {"0": [TWIN], "1": [0, 2]})
    found = drift(dense, smaller)
    assert found["texts"] == TEXTS
    assert found["heads"] == 7
    assert found["changed"] == []
    assert found["roles"]["previous"] == found["roles"]["punctuation"] == {"before": 1, "after": 1}
    assert set(found["statistics"]) == {
        "entropy", "distance", "confidence", "first", "special", "punctuation", "context_norm"
    }  # fmt: skip
    for moved in found["statistics"].values():
        assert moved["before"] == pytest.approx(moved["after"], abs=1e-6)
        assert moved["moved"] < 1e-6


def test_a_head_that_changes_is_named_with_its_roles_and_its_excess(dense):
    smaller = cut(copy.deepcopy(dense), {"0": [TWIN]})
    with torch.no_grad():
        smaller.encoder.layer[0].attention.self.query.weight[PREVIOUS * PLACES : (PREVIOUS + 1) * PLACES] = 0
    found = drift(dense, smaller)
    (changed,) = found["changed"]
    assert changed["head"] == f"0.{PREVIOUS}"
    assert changed["before"][0] == "previous"
    assert "previous" not in changed["after"]
    before, after = changed["excess"]["previous"]
    assert before > 0.5
    assert abs(after) < 0.05
    assert "previous" not in found["roles"] or found["roles"]["previous"]["after"] == 0
    entropy = found["statistics"]["entropy"]
    assert entropy["most"]["head"] == f"0.{PREVIOUS}"
    assert entropy["most"]["after"] > entropy["most"]["before"]
    assert entropy["moved"] == pytest.approx((entropy["most"]["after"] - entropy["most"]["before"]) / 9, rel=1e-4)


def test_roles_that_heads_were_kept_for_are_looked_for_again(dense):
    smaller = cut(copy.deepcopy(dense), {"0": [TWIN]})
    found = drift(dense, smaller, also=["duplicate-token", "self"])["looked_for"]
    assert set(found) == {*LOOKED_FOR, "duplicate-token"}
    assert "duplicate-token" not in LOOKED_FOR
