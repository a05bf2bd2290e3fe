"""Runs whose folder, model or texts were moved: found, or told what to do; never mixed up with others."""

import shutil

import pytest

from headwise.analysis.errors import BadInput
from headwise.prune import Recipe, judgement, load, run
from headwise.prune.begun import require_there
from headwise.prune.cli import main
from headwise.prune.folder import check_place
from headwise.prune.judgement import pair_of
from headwise.prune.opening import open_checkpoint
from headwise.prune.verifying import verify
from tests.prune.test_changed import other_weights
from tests.prune.tiny_run import checkpoint, settings, table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where a run of a model with a relative path was started."""
    folder = tmp_path_factory.mktemp("begun")
    checkpoint(folder / "owner" / "model")
    table(folder / "texts.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(
            Recipe.load("gradient", ["model.id=owner/model", *settings(None, folder / "texts.jsonl")]), output_dir="run"
        )
    return folder


def test_a_run_seen_from_elsewhere_does_not_take_a_model_of_the_hub_for_its_own(made, tmp_path, monkeypatch, capsys):
    moved = tmp_path / "other name"
    shutil.copytree(made / "run", moved)
    monkeypatch.chdir(tmp_path)
    told = r"its model was the folder owner/model, which is not here; go to where the run was started, or put it"
    with pytest.raises(BadInput, match=told):
        verify(moved)
    with pytest.raises(BadInput, match=f"{told}.*--against FOLDER"):
        judgement.evaluate(pair_of(str(moved)))
    assert main(["report", str(moved)]) == 0
    assert main(["export", str(moved), "out.pt2", "--to", "torch"]) == 0  # of the cut model alone
    found = judgement.evaluate(pair_of(str(moved), against=str(made / "owner" / "model")))
    assert found["against"]["id"] == str(made / "owner" / "model")
    # With a link at that name all is as it was.
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "model").symlink_to(made / "owner" / "model")
    assert judgement.evaluate(pair_of(str(moved)))["accuracy"] == found["accuracy"]


def test_of_a_model_in_memory_nobody_is_told_that_it_was_a_folder(made, tmp_path):
    from transformers import AutoTokenizer

    model = load(made / "owner" / "model")
    model.config._name_or_path = model.name_or_path = ""
    recipe = Recipe.load("random-baseline", settings(None, made / "texts.jsonl"))
    run(recipe, model, tokenizer=AutoTokenizer.from_pretrained(made / "owner" / "model"), output_dir=tmp_path / "lent")
    told = "its model, a BertForSequenceClassification, was lent from memory and lies nowhere that is known"
    with pytest.raises(BadInput, match=told):
        verify(tmp_path / "lent")
    with pytest.raises(BadInput, match=f"{told}, or name it: --against FOLDER"):
        pair_of(str(tmp_path / "lent"))


def test_a_folder_has_no_revision_that_a_hub_could_be_asked_for(made):
    assert open_checkpoint(str(made / "owner" / "model"), revision="main").facts["revision"] is None


def test_the_home_of_a_user_is_known_wherever_it_lies(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(made / "owner"))
    assert load("~/model").num_labels == 2
    with pytest.raises(BadInput, match=r"holds the model that is read \(~/model\)"):
        check_place(made / "owner", "~/model")
    began = {"id": "~/model", "hash": "0"}
    require_there(made, began)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match="its model was the folder ~/model, which is not here"):
        require_there(made, began)


def test_a_folder_that_hides_a_model_of_the_hub_is_told(tmp_path, monkeypatch):
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"owner/model holds no config\.json \(it is a folder here, so no hub is asked"):
        load("owner/model")


def test_a_model_and_texts_that_changed_since_are_told(made, tmp_path, monkeypatch, capsys):
    shutil.copytree(made / "run", tmp_path / "run")
    shutil.copytree(made / "owner", tmp_path / "owner")
    other_weights(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        BadInput, match=r"owner/model is not the model that the run began with any more.*--against MODEL"
    ):
        judgement.evaluate(pair_of("run"))
    assert judgement.evaluate(pair_of("run", against="owner/model"))["against"]["id"] == "owner/model"
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(made / "texts.jsonl"), str(table(tmp_path / "texts.jsonl", 60))))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    code, error = main(["report", "--verify", "run"]), capsys.readouterr().err
    # Whatever else ends it (a signal, a full disk) says so itself.
    assert code == 1, error
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    assert "changed since: model: " in error
    assert "calibration texts: " in error
