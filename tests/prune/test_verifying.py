"""A run's recipe carried out again, and input that means harm carried through a run."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.analysis.errors import BadInput
from headwise.prune import Recipe, load, pipeline, run
from headwise.prune.cli import main
from headwise.prune.shipped import shipped
from headwise.prune.verifying import verify
from tests.prune.tiny_run import checkpoint, settings, table

EVIL = "<script>alert(1)</script>\x1b[31m\\input{x} $&| \u202e\nnew"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verified")
    checkpoint(folder / "model")
    table(folder / "texts.jsonl")
    told = Recipe.load("gradient", settings(folder / "model", folder / "texts.jsonl", "description=gone & <b>bold</b>"))
    run(told, output_dir=folder / "run")
    return folder


def test_a_run_repeats(place, capsys):
    assert main(["report", "--verify", str(place / "run"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert all(found["files"].values())
    assert found["weights"]["run"] == found["weights"]["again"]
    assert found["differs"] == {}


KINDS = {
    **{name: (name, ()) for name in shipped()},
    "finetune": ("gradient", ("recover={kind: finetune, epochs: 1}",)),
    "distil": ("gradient", ("recover={kind: distil, epochs: 1}",)),
    "reach": ("gradient", ("reach={drop: 0.9}",)),
    "exchange": ("reconstruction", ("search={kind: exchange}",)),
    "counts": ("reconstruction", ("search={kind: counts, evaluations: 4}",)),
    "gates": ("gradient", ("score={kind: gates}",)),
    "no repair": ("gradient", ("compensate={kind: none}", "remove={operations: 0.1, length: 8}")),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_repeats(kind, place, tmp_path):
    name, changes = KINDS[kind]
    told = Recipe.load(name, settings(place / "model", place / "texts.jsonl", *changes))
    found = verify(run(told, output_dir=tmp_path / "run").folder)
    assert found["same"]
    assert {name for name, same in found["files"].items() if not same} == set()
    assert {"plan.json", "proof.json", "compensation.json", "accuracy.json", "drift.json", "stability.json"} <= set(
        found["files"]
    )
    assert ("recovery.json" in found["files"]) == (kind in ("finetune", "distil"))


def test_weights_or_a_plan_that_somebody_changed_are_noticed(place, tmp_path, capsys):
    changed = tmp_path / "run"
    shutil.copytree(place / "run", changed)
    file = changed / "checkpoint" / "model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(10.0))
    save_file(tensors, file, metadata={"format": "pt"})
    environment = json.loads((changed / "environment.json").read_text())
    environment["versions"]["torch"] = "1.0"
    (changed / "environment.json").write_text(json.dumps(environment))
    assert main(["report", "--verify", str(changed)]) == 1
    error = capsys.readouterr().err
    assert "does not repeat" in error
    assert "torch: 1.0, now" in error
    (changed / "plan.json").unlink()
    with pytest.raises(BadInput, match=r"plan\.json is missing"):
        verify(changed)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, BadInput])
def test_a_repetition_that_is_broken_off_sends_nobody_to_a_folder_that_is_gone(
    ending, place, monkeypatch, caplog, tmp_path
):
    def broken_off(*_):
        raise ending

    monkeypatch.setattr(pipeline, "_speed", broken_off)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(ending):
        verify(place / "run")
    assert "are kept" not in caplog.text
    assert str(tmp_path) not in caplog.text
    assert list(tmp_path.iterdir()) == []


# --- hostile input


def test_hostile_texts_labels_and_names_stay_text(tmp_path, capsys):
    """From model name, texts and labels to report, card and terminal."""
    model = tmp_path / "<img src=x onerror=alert(1)>"
    checkpoint(model, id2label={0: EVIL, 1: "yes"}, label2id={EVIL: 0, "yes": 1})
    with (tmp_path / "texts.jsonl").open("w") as file:
        for i in range(24):
            file.write(json.dumps({"text": f"{EVIL} w{i % 30} w{i}", "label": [EVIL, "yes"][i % 2]}) + "\n")
    said = ["prune", str(model), "-r", "gradient", "--output-dir", str(tmp_path / "run")]
    for change in settings(None, tmp_path / "texts.jsonl"):
        said += ["--set", change]
    assert main(said) == 0
    out, err = capsys.readouterr()
    page = (tmp_path / "run" / "report.html").read_text()
    card = (tmp_path / "run" / "checkpoint" / "README.md").read_text()
    assert "Content-Security-Policy" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    for text in (page, card, (tmp_path / "run" / "report.md").read_text(), out, err):
        assert "\x1b[31m" not in text
        assert "\u202e" not in text
    assert "<script>alert" not in card
    assert load(tmp_path / "run" / "checkpoint").config.id2label[0] == EVIL


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["edits"].append({**record["edits"][0], "path": "../../etc"}),
        lambda record: record.update(edits="nonsense"),
        lambda record: record["edits"][0].update(runs=[[0, 10**9]]),
    ],
    ids=["a path outside", "no list", "beyond the weights"],
)
def test_a_manifest_that_does_not_fit_is_refused(change, place, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(place / "run" / "checkpoint", folder)
    config = json.loads((folder / "config.json").read_text())
    change(config["headwise"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"record|edit"):
        load(folder)


def test_code_and_pickles_inside_a_checkpoint_are_not_run(place, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(place / "run" / "checkpoint", folder)
    (folder / "modeling_headwise.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    load(folder)
    assert not (tmp_path / "ran").exists()
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="safetensors"):
        load(folder)
