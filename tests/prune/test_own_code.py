"""Checkpoints whose model is Python code of their own: cut, saved, and opened again by leave of the user."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from headwise.analysis.errors import BadInput
from headwise.prune import cut, load, save
from headwise.prune.checkpoint.skeleton import skeleton
from headwise.prune.opening import open_checkpoint
from headwise.prune.report.folder import Folder
from headwise.prune.report.serving import loading, servings
from tests.prune.tiny_run import checkpoint

DOORS = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.Own"}
CODE = """
from transformers import BertConfig, BertForSequenceClassification
from .own_part import NAME
class OwnConfig(BertConfig):
    model_type = NAME
class Own(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.fixture
def dense(tmp_path, own_modules):
    folder = checkpoint(tmp_path / "dense")
    (folder / "own.py").write_text(CODE)
    (folder / "own_part.py").write_text("NAME = 'own-bert'\n")
    told = json.loads((folder / "config.json").read_text())
    told |= {"model_type": "own-bert", "auto_map": DOORS, "architectures": ["Own"]}
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def said(model):
    with torch.no_grad():
        return model.eval()(torch.arange(4, 12)[None]).logits


def test_a_cut_model_of_own_code_is_whole_behind_every_door(dense, tmp_path):
    model = cut(load(dense, trust_remote_code=True), {"0": [1], "1": [0, 3]})
    folder, want = save(model, tmp_path / "cut"), said(model)
    again = load(folder, trust_remote_code=True)
    assert (type(again).__name__, torch.equal(said(again), want)) == ("Own", True)
    assert sum(p.numel() for p in skeleton(str(folder), trust_remote_code=True).parameters()) == again.num_parameters()
    assert 'load("path/to/this/folder", trust_remote_code=True)' in (folder / "README.md").read_text()
    # Without headwise, too; and what was opened can be saved, cut and opened once more.
    alone = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(said(alone), want)
    twice = save(cut(again, {"1": [1]}), tmp_path / "twice")
    assert torch.equal(said(load(twice, trust_remote_code=True)), said(again))
    # What the written code opened is of the same class.
    third = save(alone, tmp_path / "third")
    assert torch.equal(said(load(third, trust_remote_code=True)), want)
    assert {"own.py", "own_part.py", "modeling_headwise.py"} <= {path.name for path in twice.iterdir()}


def test_own_code_runs_by_leave_of_the_user_alone(dense, tmp_path):
    folder = save(cut(load(dense, trust_remote_code=True), {"0": [1]}), tmp_path / "cut")
    with pytest.raises(BadInput, match="--trust-remote-code"):
        load(folder)
    # A configuration that needs no code lends none.
    config = AutoConfig.from_pretrained(checkpoint(tmp_path / "stock")).to_dict()
    config["headwise"] = json.loads((folder / "config.json").read_text())["headwise"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"Python code of its own \(own.Own\).*--trust-remote-code"):
        load(folder)
    for damaged in ({"os": "own.Own"}, {"AutoModel": "own"}, [1], {"AutoModel": 1}):
        config["headwise"]["code"] = damaged
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(BadInput, match="record is damaged: code is"):
            load(folder, trust_remote_code=True)


def test_a_class_of_transformers_that_the_written_code_opened_is_none_of_its_own(tmp_path, own_modules):
    folder = save(cut(load(checkpoint(tmp_path / "dense")), {"0": [1]}), tmp_path / "cut")
    alone = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    assert type(alone).__module__.endswith(".modeling_headwise")
    assert torch.equal(said(load(save(alone, tmp_path / "again"))), said(alone))


@pytest.mark.parametrize("own", [True, False])
def test_a_report_says_what_opening_takes(own, dense, tmp_path):
    """Of the model's own code, not of that of its tokenizer."""
    opened = open_checkpoint(str(dense if own else checkpoint(tmp_path / "stock")), trust_remote_code=own)
    files = frozenset({"headwise.json", "modeling_headwise.py", "tokenization_my.py"})
    folder = Folder("run", ".", (), checkpoint=files, environment={"model": opened.facts})
    assert ("trust_remote_code=True" in loading(folder)[0].code) is own
    assert ("without a flag" in servings(folder, ())[0].how) is not own
