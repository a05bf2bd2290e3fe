"""One, two or three processes: the same evidence, also after an interruption."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headwise.analysis.analyze import analyze
from headwise.analysis.annotations import Annotated
from headwise.analysis.capture import keeping
from headwise.analysis.capture.totals import absorb, packed, totals_of
from headwise.analysis.errors import BadInput, HeadwiseError
from headwise.analysis.evidence import Evidence
from headwise.analysis.redundancy import stability
from headwise.analysis.similarity import MEASURES
from headwise.analysis.statistics import Statistics


def neighbour(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


planted, forks = neighbour("planted"), neighbour("forks")
ROLES = ("previous", "punctuation", "fixed-offset", "broad", "confident", "dormant", "coreference")
GOLD = [
    Annotated(f"word{i} word2 word{i + 20} .", links=(((0, 5), (12, 18)),), relation=relation)
    for relation in ("coreference", "pointing")
    for i in range(1, 8)
]


def evidence(**how):
    model, tokenizer = planted.planted_model(), planted.planted_tokenizer()
    given = {"measures": [*MEASURES, "replaceability"], "roles": ROLES, "annotated": GOLD, "batch_size": 4}
    return analyze(model, tokenizer, planted.planted_corpus(20), **(given | how))


def saved(folder, **how):
    evidence(**how).save(folder)


def same(one, other):
    assert set(one.arrays) == set(other.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.fixture(scope="module", autouse=True)
def _few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["headwise.analysis.analyze"], "stability", partial(stability, resamples=3))
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    saved(tmp_path_factory.mktemp("alone"))
    return Evidence.load(next(tmp_path_factory.getbasetemp().glob("alone*")))


FACTS = ("rows", "batches", "coreference", "links", "missing_mass", "excluded_rows", "tiled_texts", "texts")


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_processes_gives_the_same(tmp_path, alone, count):
    assert forks.in_processes(count, saved, tmp_path) == [0] * count
    found = [Evidence.load(tmp_path / str(rank)) for rank in range(count)]
    for other in found[1:]:
        same(found[0], other)
    for name, array in alone.arrays.items():
        np.testing.assert_allclose(found[0][name], array, atol=1e-6, rtol=1e-6, err_msg=name)
    assert {fact: found[0].facts[fact] for fact in FACTS} == {fact: alone.facts[fact] for fact in FACTS}


def test_processes_text_by_text_and_more_of_them_than_batches(tmp_path):
    few = {"measures": ["pearson"], "roles": ("previous",), "annotated": (), "per_text": True, "batch_size": 32}
    assert forks.in_processes(2, lambda folder: saved(folder, **few), tmp_path) == [0, 0]
    wanted = evidence(**few)
    for rank in range(2):
        for name, array in Evidence.load(tmp_path / str(rank)).arrays.items():
            np.testing.assert_allclose(array, wanted[name], atol=1e-6, rtol=1e-6, err_msg=name)


def interrupted_after(updates, method=Statistics):
    """The method of a reducer, ending the process after some calls."""
    whole, calls = method.update, []

    def update(self, batch, seen):
        calls.append(batch)
        if len(calls) > updates:
            os._exit(9)
        whole(self, batch, seen)

    return update


def test_several_interrupted_processes_go_on_to_the_same_bits(tmp_path, monkeypatch):
    few = {"roles": ("previous", "coreference"), "measures": ["pearson", "jensen_shannon", "cka"]}
    monkeypatch.setattr(keeping, "SECONDS", 0.0)
    monkeypatch.setattr(keeping, "SHARE", float("inf"))
    assert forks.in_processes(2, lambda folder: saved(folder, **few), tmp_path / "whole") == [0, 0]
    keep = {"keep": tmp_path / "sums"}
    with monkeypatch.context() as patch:
        patch.setattr(Statistics, "update", interrupted_after(1))
        assert forks.in_processes(2, lambda folder: saved(folder, **few, **keep), tmp_path / "cut short") == [9, 9]
    assert {path.name for path in (tmp_path / "sums").iterdir()} == {"texts-0.pt", "texts-1.pt"}
    assert forks.in_processes(2, lambda folder: saved(folder, **few, **keep), tmp_path / "again") == [0, 0]
    for rank in ("0", "1"):
        same(Evidence.load(tmp_path / "whole" / rank), Evidence.load(tmp_path / "again" / rank))
    # A share of two is no share of one.
    with pytest.raises(BadInput, match="processes: 2 then, 1 now"):
        evidence(**few, **keep)


@pytest.mark.slow
def test_the_command_line_under_accelerate(tmp_path):
    model, tokenizer = planted.planted_model(), planted.planted_tokenizer()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(text.text for text in planted.planted_corpus(60).texts))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--num_processes"]
    asked = ["-m", "headwise.prune.cli", "analyze", str(tmp_path / "model"), "--texts", str(texts), "--batch-size", "4"]
    for count in ("1", "2"):
        command = [*launcher, count, *asked, "--output-dir", str(tmp_path / count)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.count("report: ") == 1
    one, two = (Evidence.load(tmp_path / count / "evidence") for count in ("1", "2"))
    for name, array in one.arrays.items():
        np.testing.assert_allclose(two[name], array, atol=1e-6, rtol=1e-6, err_msg=name)


def test_a_reducer_without_named_sums_is_refused():
    class Nothing:
        pass

    with pytest.raises(HeadwiseError, match="Nothing does not say"):
        totals_of(Nothing())

    class Odd:
        totals = ("what",)
        what = "text"

    with pytest.raises(HeadwiseError, match="cannot bring together str"):
        absorb(Odd(), {"what": "more"})
    with pytest.raises(HeadwiseError, match="cannot keep Odd"):
        packed({"odd": Odd()})
