import json

import numpy as np
import pytest

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence


def evidence():
    arrays = {
        "statistics/entropy": np.array([1.0, np.nan, 3.0]),
        "similarity/pearson": np.eye(3),
        "clusters/label": np.array([0, 1, -1]),
        "clusters/linkage": np.zeros((1, 4)),
        "clusters/order": np.array([1, 0]),
        "roles/self/assigned": np.array([True, False, True]),
        "roles/self/excess": np.array([0.2, 0.0, 0.3]),
        "roles/next/assigned": np.array([True, False, False]),
        "roles/next/excess": np.array([0.4, 0.0, 0.0]),
    }
    facts = {"model": {"id": "für alle"}, "loss": float("nan"), "count": np.int64(3), "sizes": (1, 2)}
    return Evidence([("a", 0), ("a", 1), ("b", 0)], arrays, facts)


def test_saved_evidence_is_the_same_when_loaded(tmp_path):
    one = evidence()
    one.save(tmp_path / "new" / "folder")
    other = Evidence.load(tmp_path / "new" / "folder")
    assert other.heads == one.heads
    assert set(other.arrays) == set(one.arrays)
    for name, array in one.arrays.items():
        assert other[name].dtype == array.dtype
        np.testing.assert_array_equal(other[name], array)
    assert other.facts == {"model": {"id": "für alle"}, "loss": None, "count": 3, "sizes": [1, 2]}
    document = json.loads((tmp_path / "new" / "folder" / "evidence.json").read_text(encoding="utf-8"))
    assert document["schema"] == 1


def test_reading_it():
    one = evidence()
    assert one.labels() == ["a.0", "a.1", "b.0"]
    assert one.roles() == [["next", "self"], [], ["self"]]
    np.testing.assert_array_equal(one.by_site("statistics/entropy")["b"], [3.0])
    with pytest.raises(BadInput, match="no 'statistics/x'; it has: clusters/label"):
        _ = one["statistics/x"]


def test_what_is_broken_is_named(tmp_path):
    with pytest.raises(BadInput, match="no evidence there"):
        Evidence.load(tmp_path)
    evidence().save(tmp_path)
    text = (tmp_path / "evidence.json").read_text(encoding="utf-8")
    (tmp_path / "evidence.json").write_text(text.replace('"schema": 1', '"schema": 7'), encoding="utf-8")
    with pytest.raises(BadInput, match="schema 7, expected 1"):
        Evidence.load(tmp_path)
    document = json.loads(text)
    document["heads"].append(["b", 1])
    (tmp_path / "evidence.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(BadInput, match="for 4 heads"):
        Evidence.load(tmp_path)
    (tmp_path / "evidence.json").write_text(text, encoding="utf-8")
    (tmp_path / "arrays.safetensors").write_bytes(b"no")
    with pytest.raises(BadInput, match="no evidence there"):
        Evidence.load(tmp_path)
    with pytest.raises(BadInput, match="facts of the evidence"):
        Evidence([], {}, {"what": object()}).save(tmp_path)
