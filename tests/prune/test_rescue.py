"""Checkpoints that transformers 4 pruned: its config.json says `pruned_heads`, its weights are sliced."""

import json
import os
import re
import sys
import types

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint import load
from headwise.prune.checkpoint.rescue import rescue
from headwise.prune.cli.app import main
from headwise.prune.surgery import cut
from tests.families import FAMILIES
from tests.models import build, inputs_of

PRUNED = {"0": [1], "1": [0, 3]}
# Names that transformers 4 gave to ViT's parts; releases from 5.9 on call them otherwise.
OLD_NAMES = (
    (r"^(vit|deit)\.layers\.", r"\1.encoder.layer."), (r"^layers\.", "encoder.layer."),
    (r"attention\.(q|k|v)_proj", lambda m: "attention.attention." + {"q": "query", "k": "key", "v": "value"}[m[1]]),
    (r"attention\.o_proj", "attention.output.dense"), (r"mlp\.fc1", "intermediate.dense"), (r"mlp\.fc2", "output.dense"),
)  # fmt: skip


def by_transformers_4(name, folder, pruned=PRUNED):
    """A checkpoint as transformers 4 wrote it, and the outputs of its model."""
    model, inputs = build(FAMILIES[name]), inputs_of(FAMILIES[name])
    cut(model, dict(PRUNED))
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    renamed = {}
    for key, tensor in weights.items():
        for pattern, old in OLD_NAMES if name in ("vit", "deit") else ():
            key = re.sub(pattern, old, key)
        renamed[key] = tensor
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["headwise"]
    (folder / "config.json").write_text(
        json.dumps({**config, "pruned_heads": pruned, "transformers_version": "4.57.6"})
    )
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-r", "camembert", "electra", "esm", "distilbert", "gpt2", "vit",
                                  "deit", "dinov2"])  # fmt: skip
def test_what_transformers_4_pruned_opens_and_is_saved_anew(name, tmp_path):
    want = by_transformers_4(name, tmp_path / "old")
    inputs = inputs_of(FAMILIES[name])
    model = load(tmp_path / "old")
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], want)
    assert {n: s.kept for n, s in find_sites(model).items()} == {"0": (0, 2, 3), "1": (1, 2)}
    rescue(tmp_path / "old", tmp_path / "new")
    again = load(tmp_path / "new")
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], want)
    assert "pruned_heads" not in {k: v for k, v in json.loads((tmp_path / "new/config.json").read_text()).items() if v}


@pytest.mark.parametrize(("pruned", "told"), [
    ({"7": [0]}, "layer '7'"), ({"x": [0]}, "layer 'x'"), ({"0": [4]}, "no head 4"), ({"0": [-1]}, "expected a list of heads"),
    ({"0": "1"}, "expected a list of heads"), ({"0": [0, 1]}, "other shapes"),
])  # fmt: skip
def test_damaged_pruned_heads_are_refused(pruned, told, tmp_path):
    by_transformers_4("bert", tmp_path / "old", pruned)
    with pytest.raises(BadInput, match=told):
        load(tmp_path / "old")


def test_a_dense_checkpoint_needs_no_rescue(tmp_path):
    build(FAMILIES["bert"]).save_pretrained(tmp_path / "dense")
    with pytest.raises(BadInput, match="nothing to rescue"):
        rescue(tmp_path / "dense", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pickle_is_read_only_when_asked(tmp_path):
    want = by_transformers_4("bert", tmp_path / "old")
    torch.save(load_file(tmp_path / "old/model.safetensors"), tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    with pytest.raises(BadInput, match="pickled"):
        rescue(tmp_path / "old", tmp_path / "new")
    model = rescue(tmp_path / "old", tmp_path / "new", allow_pickle=True)
    with torch.no_grad():
        assert torch.equal(model(**inputs_of(FAMILIES["bert"]))[0], want)


def test_the_command_rescues_and_never_overwrites(tmp_path, capsys):
    by_transformers_4("gpt2", tmp_path / "old")
    assert main(["rescue", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    assert "3 of 8 heads were pruned" in capsys.readouterr().out
    assert main(["rescue", str(tmp_path / "old"), str(tmp_path / "new")]) == 2
    assert main(["rescue", str(tmp_path / "old"), str(tmp_path / "told"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "out": str(tmp_path / "told"), "class": "GPT2LMHeadModel", "heads_removed": 3, "sites": {"0": 1, "1": 2}
    }  # fmt: skip
    assert main(["rescue", str(tmp_path / "old"), str(tmp_path / "hushed"), "--quiet"]) == 0
    assert tuple(capsys.readouterr()) == ("", "")
    assert main(["rescue", str(tmp_path / "missing"), str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()


def test_a_dense_pickle_is_saved_anew_and_the_refusal_says_how(tmp_path, capsys):
    dense = build(FAMILIES["bert"])
    dense.save_pretrained(tmp_path / "old")
    torch.save(dense.state_dict(), tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    (tmp_path / "old/vocab.txt").write_text("[PAD]\n")
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    with pytest.raises(BadInput, match=rf"headwise rescue {re.escape(old)} OUT --allow-pickle"):
        load(old)
    assert main(["rescue", old, new]) == 2
    assert main(["rescue", old, new, "--allow-pickle"]) == 0
    assert "saved as safetensors" in capsys.readouterr().out
    assert main(["rescue", old, str(tmp_path / "told"), "--allow-pickle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["heads_removed"] == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} >= {"model.safetensors", "vocab.txt"}
    assert not list((tmp_path / "new").glob("*.bin"))
    inputs = inputs_of(FAMILIES["bert"])
    with torch.no_grad():
        assert torch.equal(load(new)(**inputs)[0], dense(**inputs)[0])


def test_libraries_are_imported_once_they_are_told_to_be_quiet(monkeypatch):
    """They read it when they are imported: before, they would show bars whatever the command said."""
    told = "HF_HUB_DISABLE_PROGRESS_BARS"
    monkeypatch.delenv(told, raising=False)
    seen = []

    def asked(_name):
        seen.append(os.environ.get(told))
        raise AttributeError

    fake = types.ModuleType("rescue")
    fake.__getattr__ = asked
    monkeypatch.setitem(sys.modules, "headwise.prune.checkpoint.rescue", fake)
    main(["rescue", "old", "new", "-q"])
    assert seen
    assert set(seen) == {"1"}
