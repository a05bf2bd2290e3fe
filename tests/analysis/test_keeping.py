"""An interrupted analysis goes on from its sums, to the same bits."""

import importlib.util
import os
import signal
import sys
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.analysis.analyze import analyze
from headwise.analysis.annotations import Annotated
from headwise.analysis.capture import keeping
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.redundancy import stability
from headwise.analysis.roles.coreference import Antecedents
from headwise.analysis.roles.links import Links
from headwise.analysis.similarity import MEASURES
from headwise.analysis.statistics import Statistics
from headwise.prune.cli import main


def neighbour(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


planted, forks = neighbour("planted"), neighbour("forks")
MODEL, TOKENIZER = planted.planted_model(), planted.planted_tokenizer()
GOLD = [
    Annotated(f"word{i} word2 word{i + 20} .", links=(((0, 5), (12, 18)),), relation=relation)
    for relation in ("coreference", "pointing")
    for i in range(1, 8)
]
EVERYTHING = {
    "measures": [*MEASURES, "replaceability"],
    "roles": ("previous", "punctuation", "fixed-offset", "broad", "confident", "dormant", "coreference"),
    "annotated": GOLD,
}
TEXT_BY_TEXT = {"measures": ["jensen_shannon", "pearson"], "roles": ("previous",), "per_text": True, "ordinary": True}
IN_TILES = {"measures": ["pearson"], "roles": ("previous",), "memory": 60_000}
WAYS = {"everything": EVERYTHING, "text by text": TEXT_BY_TEXT, "in tiles": IN_TILES}


def evidence(count=16, **how):
    return analyze(MODEL, TOKENIZER, planted.planted_corpus(count), **({"batch_size": 4, "seed": 1} | how))


def same(one, other):
    assert set(one.arrays) == set(other.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    np.testing.assert_equal(one.facts, other.facts)


@pytest.fixture(autouse=True)
def _written_after_every_batch(monkeypatch):
    monkeypatch.setattr(keeping, "SECONDS", 0.0)
    monkeypatch.setattr(keeping, "SHARE", float("inf"))
    # A hundred clusterings take longer than the passes that are looked at here.
    monkeypatch.setattr(sys.modules["headwise.analysis.analyze"], "stability", partial(stability, resamples=3))


@lru_cache
def uninterrupted(name):
    """What an analysis finds when nothing disturbs it, and how often it showed something to each reducer."""
    with pytest.MonkeyPatch.context() as patch:
        calls = {reducer: counted(patch, reducer) for reducer in (Statistics, Antecedents, Links)}
        return evidence(**WAYS[name]), {reducer: len(made) for reducer, made in calls.items()}


def counted(patch, reducer, stop_after=None, end=RuntimeError):
    """Calls of a reducer's update, the one after `stop_after` of which fails."""
    whole, calls = reducer.update, []

    def update(self, batch, seen):
        calls.append(len(calls))
        if stop_after is not None and len(calls) > stop_after:
            raise end
        whole(self, batch, seen)

    patch.setattr(reducer, "update", update)
    return calls


@pytest.mark.parametrize(
    ("name", "reducer", "batches"),
    [
        ("everything", Statistics, 3),
        ("everything", Antecedents, 0),
        ("everything", Links, 0),
        ("text by text", Statistics, 2),
        ("in tiles", Statistics, 20),
    ],
)
def test_an_interrupted_analysis_goes_on_to_the_same_bits(tmp_path, monkeypatch, name, reducer, batches):
    how, (whole, totals) = WAYS[name], uninterrupted(name)
    total = totals[reducer]
    with monkeypatch.context() as patch:
        counted(patch, reducer, batches)
        with pytest.raises(RuntimeError):
            evidence(**how, keep=tmp_path / "sums")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in MODEL.modules())
    with monkeypatch.context() as patch:
        calls = counted(patch, reducer)
        again = evidence(**how, keep=tmp_path / "sums")
    if name == "in tiles":
        # A text takes several calls, and one that was broken off starts afresh.
        assert total - batches <= len(calls) < total
    else:
        assert len(calls) == total - batches
    same(whole, again)
    assert (whole.facts["tiled_texts"] > 0) == (name == "in tiles")
    # What has ended is not looked at again.
    with monkeypatch.context() as patch:
        calls = counted(patch, reducer, 0)
        same(whole, evidence(**how, keep=tmp_path / "sums"))
        assert calls == []


def test_a_killed_analysis_goes_on_even_if_it_died_writing(tmp_path, monkeypatch):
    keep = tmp_path / "sums"
    whole, written = torch.save, []

    def half(state, file):
        written.append(1)
        if len(written) < 3:
            return whole(state, file)
        file.write(b"PK half of a file")
        file.flush()
        return os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        assert forks.in_processes(1, lambda _: evidence(**EVERYTHING, keep=keep), tmp_path) == [-signal.SIGKILL]
    assert {path.name for path in keep.iterdir()} == {"texts-0.pt", "texts-0.pt.new"}
    with monkeypatch.context() as patch:
        calls = counted(patch, Statistics)
        again = evidence(**EVERYTHING, keep=keep)
    assert len(calls) == 4 - 2
    same(uninterrupted("everything")[0], again)


def test_sums_of_another_analysis_are_refused_with_what_differs(tmp_path, monkeypatch):
    few = {"measures": ["pearson"], "roles": ("previous",), "keep": tmp_path / "sums"}
    evidence(8, **few)
    for other, said in (
        ({"roles": ("previous", "self")}, 'roles: \\["previous"\\] then, \\["previous", "self"\\] now'),
        ({"batch_size": 8}, "batch size: 4 then, 8 now"),
        ({"seed": 3}, "seed: 1 then, 3 now"),
        ({"annotated": GOLD}, "annotations: none then"),
    ):
        with pytest.raises(BadInput, match=f"left by another analysis .{said}"):
            evidence(8, **(few | other))
    with pytest.raises(BadInput, match=r"texts: [0-9a-f]{16} then"):
        evidence(9, **few)
    other = planted.planted_model()
    torch.nn.init.zeros_(other.encoder.layer[1].attention.self.value.weight)
    with pytest.raises(BadInput, match=r"model: BertModel [0-9a-f]{16} then"):
        analyze(other, TOKENIZER, planted.planted_corpus(8), batch_size=4, seed=1, **few)
    path = tmp_path / "sums" / "texts-0.pt"
    for content, said in ((b"nothing", "cannot be read"), (b"", "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=said):
            evidence(8, **few)
    torch.save(("dict", [("marks", ("dict", []))]), path)
    with pytest.raises(BadInput, match="holds no sums"):
        evidence(8, **few)


def test_nothing_is_written_of_what_is_over_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "SECONDS", 60.0)
    evidence(8, measures=["pearson"], roles=("previous",), keep=tmp_path / "sums")
    assert not (tmp_path / "sums").exists()


def test_the_command_line_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, capsys):
    MODEL.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(text.text for text in planted.planted_corpus(16).texts))

    def run(*arguments):
        asked = ["analyze", tmp_path / "model", "--texts", texts, "--roles", "previous", "--batch-size", "4", "-q"]
        return main([str(argument) for argument in (*asked, *arguments)])

    assert run("--output-dir", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        counted(patch, Statistics, 2, KeyboardInterrupt)
        assert run("--output-dir", tmp_path / "out") == 130
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "out.partial" / "sums").iterdir()] == ["texts-0.pt"]
    assert run("--output-dir", tmp_path / "out") == 2
    assert "--resume" in capsys.readouterr().err
    texts.write_text("word1 word2\n" + texts.read_text())
    assert run("--output-dir", tmp_path / "out", "--resume") == 2
    assert "texts changed since the analysis began" in capsys.readouterr().err
    texts.write_text(texts.read_text().partition("\n")[2])
    assert run("--output-dir", tmp_path / "out", "--resume", "--similarity", "cosine") == 2
    assert 'measures: ["pearson", "cosine", "hellinger"] then, ["cosine"] now' in capsys.readouterr().err
    with monkeypatch.context() as patch:
        calls = counted(patch, Statistics)
        assert run("--output-dir", tmp_path / "out", "--resume") == 0
    assert len(calls) == 2
    same(Evidence.load(tmp_path / "whole" / "evidence"), Evidence.load(tmp_path / "out" / "evidence"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }
    assert run("--resume") == 2
    assert "--resume needs the --output-dir" in capsys.readouterr().err


def test_texts_in_another_order_are_other_texts():
    one, other = Text("word1 word2"), Text("word3 word4")
    how = {"tokenizer": TOKENIZER, "model": MODEL}
    from headwise.analysis.corpus.batching import batches

    assert batches(Corpus([one, other]), **how).mark != batches(Corpus([other, one]), **how).mark
