"""What an analysis is asked for: refused before anything is loaded or looked at, and never without effect."""

import pytest

from headwise.analysis.errors import BadInput
from headwise.prune import opening
from headwise.prune.inspection import Looking, inspect
from tests.prune.tiny_run import checkpoint, table


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"roles": ("nope",)}, "roles: got 'nope'"),
        ({"measures": ("nope",)}, "measures: got 'nope'"),
        ({"null": "nope"}, "null: got 'nope'"),
        ({"door": "nope"}, "door: got 'nope'"),
        ({"measures": (), "clusters": 3}, "--clusters cuts the tree .* expected some of pearson, cosine"),
        ({"measures": ("replaceability",), "threshold": 0.5}, "--threshold cuts the tree"),
    ],
)
def test_what_there_is_not_is_refused_before_a_model_is_loaded(asked, words, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "open_checkpoint", lambda *_, **__: pytest.fail("loaded"))
    texts = table(tmp_path / "texts.jsonl")
    with pytest.raises(BadInput, match=words):
        inspect("model", source=str(texts), output_dir=tmp_path / "out", looking=Looking(**asked))


@pytest.mark.parametrize("asked", [{"clusters": 9}, {"threshold": 1.5}])
def test_a_tree_that_cannot_be_cut_so_is_refused_before_texts_are_looked_at(asked, tmp_path, monkeypatch):
    monkeypatch.setattr("headwise.analysis.analyze.shared_capture", lambda *_, **__: pytest.fail("looked"))
    model, texts = checkpoint(tmp_path / "model"), table(tmp_path / "texts.jsonl")
    with pytest.raises(BadInput, match=f"{next(iter(asked))}: got {next(iter(asked.values()))}, expected"):
        inspect(str(model), source=str(texts), output_dir=tmp_path / "out", looking=Looking(**asked))
