"""Checkpoints and texts of a hub: one state of them, whatever moves or fails, and what is said."""

import json
import os
import re
import time

import pytest
import torch
from huggingface_hub import HfApi, constants
from safetensors.torch import load_file

from headwise.analysis.corpus.reading import read_source
from headwise.analysis.errors import BadInput
from headwise.prune import Recipe, judgement, load, pipeline, push_to_hub, run, save
from headwise.prune.checkpoint.rescue import rescue
from headwise.prune.cli import main
from headwise.prune.inspection import Looking, inspect
from headwise.prune.judgement import pair_of
from headwise.prune.sweep import sweep
from headwise.prune.tasks.embeddings import own_pooling
from headwise.prune.verifying import verify
from tests.hub import TOKEN, serving
from tests.prune.test_changed import other_weights
from tests.prune.tiny_run import checkpoint, settings, table

NAME = "org/tiny"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, the same with other weights, and texts."""
    folder = tmp_path_factory.mktemp("local")
    checkpoint(folder / "first")
    other_weights(checkpoint(folder / "second"))
    table(folder / "texts.jsonl")
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that the libraries take for theirs, with an empty cache and no token."""
    import datasets.config
    import transformers.utils.hub

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with serving() as served:
        changes = {
            "ENDPOINT": served.url, "HUGGINGFACE_CO_URL_TEMPLATE": served.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_TOKEN_PATH": str(tmp_path / "token"),
        }  # fmt: skip
        for name, value in changes.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", served.url)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(time, "sleep", lambda _: None)  # between attempts
        yield served


def recipe(place, *more):
    return Recipe.load("gradient", [f"model.id={NAME}", *settings(None, place / "texts.jsonl", *more)])


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_run_stays_at_the_commit_that_it_began_with(hub, place, tmp_path, monkeypatch):
    """A branch that moves, between stages, before a resume, a repetition or a comparison."""
    first = hub.put(NAME, place / "first")
    speed = pipeline._speed
    monkeypatch.setattr(pipeline, "_speed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(place), output_dir=tmp_path / "run")
    second = hub.put(NAME, place / "second")
    monkeypatch.setattr(pipeline, "_speed", speed)
    done = run(recipe(place), output_dir=tmp_path / "run", resume=True)
    made = json.loads((done.folder / "environment.json").read_text())
    assert made["model"]["revision"] == first
    assert f"--revision {first}" in (done.folder / "report.md").read_text()
    assert verify(done.folder)["same"]
    assert judgement.evaluate(pair_of(str(done.folder)))["against"]["revision"] == first
    now = judgement.evaluate(pair_of(str(done.folder), changes=["model.revision=main"]))
    assert now["against"]["revision"] == second


def test_an_analysis_stays_there_too_and_texts_are_named_with_their_revision(hub, place, tmp_path, monkeypatch):
    from headwise.prune import report

    first = hub.put(NAME, place / "first")
    texts = hub.put("datasets/org/texts", {"train.jsonl": (place / "texts.jsonl").read_bytes()})
    look = {"source": "org/texts", "output_dir": tmp_path / "seen", "looking": Looking(roles=("previous",))}
    write = report.write
    monkeypatch.setattr(report, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inspect(NAME, **look)
    hub.put(NAME, place / "second")
    monkeypatch.setattr(report, "write", write)
    made = json.loads((inspect(NAME, **look, resume=True) / "environment.json").read_text())
    assert (made["model"]["id"], made["model"]["revision"]) == (NAME, first)
    hub.put("datasets/org/texts", {"train.jsonl": b'{"text": "another"}\n'})
    asked = Recipe.load("gradient", [f"data.calibration={{source: org/texts, label: label, revision: {texts}}}"])
    assert len(asked.data.calibration.read()) == 64
    with pytest.raises(BadInput, match=r"revision 'main' asked of a file"):
        read_source(str(place / "texts.jsonl"), revision="main")


def test_a_sweep_tells_its_processes_the_commit(hub, place, tmp_path, monkeypatch):
    first = hub.put(NAME, place / "first")
    told = []

    def started(recipe, *_):
        told.append(Recipe.from_text(recipe).model.revision)
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.prune.sweep.Errand", started)
    with pytest.raises(KeyboardInterrupt):
        sweep(recipe(place), [0.25], tmp_path / "swept")
    hub.put(NAME, place / "second")
    with pytest.raises(KeyboardInterrupt):
        sweep(recipe(place), [0.25], tmp_path / "swept", resume=True)
    assert told == [first, first]


def test_revisions_of_what_is_judged_timed_and_exported(hub, place, tmp_path, capsys):
    first = hub.put(NAME, place / "first", "old")
    hub.put(NAME, place / "second")
    texts = ["--texts", str(place / "texts.jsonl"), "--label-column", "label"]
    quick = ["--batches", "1", "--lengths", "8", "--rounds", "3"]
    for said in (["evaluate", NAME, *texts], ["speed", NAME, *quick]):
        assert main([*said, "--revision", "old", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["model"]["revision"] == first
    assert main(["export", NAME, str(tmp_path / "native"), "--to", "native", "--revision", "old"]) == 0
    # By what is read back: transformers 5.0 writes weights under the names that they once had.
    saved, expected = (load(folder).state_dict() for folder in (tmp_path / "native", place / "first"))
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


def test_all_files_are_of_one_commit_also_offline(hub, place, monkeypatch):
    first = hub.put(NAME, place / "first")
    model = load(NAME)
    assert model.config._commit_hash == first
    for name in ("model.safetensors", "config.json"):
        assert f"GET /{NAME}/resolve/{first}/{name}" in hub.asked or f"GET /{NAME}/resolve/main/{name}" in hub.asked
    hub.put(NAME, place / "second")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = load(NAME)
    assert again.config._commit_hash == first
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


# ------------------------------------------------------------------------------------------------ what fails
def without(files, *names):
    return {name: content for name, content in files.items() if name not in names}


@pytest.fixture
def failing(hub, place):
    """Repositories that lack something each."""
    files = {path.name: path.read_bytes() for path in (place / "first").iterdir()}
    weights = files["model.safetensors"]
    hub.put(NAME, files)
    hub.put("org/private", files, private=True)
    hub.put("org/gated", files, gated=True)
    hub.put("org/bare", without(files, "config.json"))
    hub.put("org/adapter", without(files, "config.json") | {"adapter_config.json": b"{}"})
    hub.put("org/pickle", without(files, "model.safetensors") | {"pytorch_model.bin": b"no pickle"})
    hub.put("org/silent", without(files, "tokenizer.json", "tokenizer_config.json"))
    index = {
        "metadata": {},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    hub.put("org/half", without(files, "model.safetensors") | {
        "model.safetensors.index.json": json.dumps(index).encode(), "model-00001-of-00002.safetensors": weights,
    })  # fmt: skip
    return hub


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("org/none", [], r"has no repository of that name for you; check the name, .*hf auth login.*HF_TOKEN"),
        ("org/tiny/", [], r"no folder of that name here, and as a hub id: Repo id must"),
        ("none", [], r"no folder of that name here.*has no repository of that name for you"),
        ("org/private", [], r"has no repository of that name for you; .* if it is private, log in"),
        ("org/gated", [], r"it is gated: ask for access on its page at http.*HF_TOKEN"),
        (NAME, ["--revision", "nowhere"], r"no such revision; give a branch, a tag or a whole commit"),
        ("org/bare", [], r"org/bare holds no config\.json"),
        ("org/adapter", [], r"org/adapter holds an adapter, not a model: merge it"),
        ("org/pickle", [], r"only pickled weights\?.*headwise rescue org/pickle OUT --allow-pickle"),
        ("org/half", [], r"no?t .*a file named model-00002-of-00002\.safetensors"),
        ("org/silent", [], r"the tokenizer of 'org/silent' knows no words"),
    ],
)
def test_what_a_hub_does_not_have_or_give_is_told(name, options, told, failing, tmp_path, capsys):
    said = ["analyze", name, "--output-dir", str(tmp_path / "seen" / "out"), *options]
    assert main(said) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(told, error), error
    assert ("only pickled" in error) == (name == "org/pickle")
    assert not (tmp_path / "seen").exists()
    # Nobody is asked to convert it.
    assert not [asked for asked in failing.asked if "discussions" in asked or "commits" in asked]


def test_a_hub_that_fails_while_it_is_asked_for_an_adapter_has_told_enough(failing, monkeypatch):
    def fails(*_, **__):
        failing.status = 503
        return asks(*_, **__)

    asks = HfApi.file_exists
    monkeypatch.setattr(HfApi, "file_exists", fails)
    with pytest.raises(BadInput, match=r"org/adapter holds no config\.json"):
        load("org/adapter")


@pytest.mark.parametrize("lacks", ["metadata", "weight_map"])
def test_an_index_that_lacks_something_is_told(lacks, place, tmp_path):
    files = {path.name: path.read_bytes() for path in (place / "first").iterdir()}
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    del index[lacks]
    for name, content in without(files, "model.safetensors").items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=f"index.json lacks '{lacks}'"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_line_that_goes_dead_is_told_and_the_next_attempt_goes_on(name, hub, place, tmp_path, capsys):
    hub.put(NAME, place / "first")
    said = ["heads", NAME] if name == "config.json" else ["analyze", NAME, "--roles", "previous", "--texts", "x.txt"]
    said += [] if name == "config.json" else ["--output-dir", str(tmp_path / "seen"), "--quiet"]
    (tmp_path / "x.txt").write_text("w1 w2 w3\nw4 w5 w6 w7\n")
    said = [str(tmp_path / word) if word == "x.txt" else word for word in said]
    hub.broken = name
    assert main(said) == 2
    assert f"the way to {hub.url} is broken (peer closed connection" in capsys.readouterr().err
    assert not (tmp_path / "seen").exists()
    hub.broken = "\0"
    assert main(said) == 0


def test_texts_that_do_not_come_are_told(hub, monkeypatch):
    hub.put("datasets/org/texts", {"train.jsonl": b'{"text": "w1"}\n' * 9})
    hub.broken = "train.jsonl"
    with pytest.raises(BadInput, match=r"data set 'org/texts', split 'train': the way to http.*; or give a file"):
        read_source("org/texts")
    hub.broken = "\0"
    with pytest.raises(BadInput, match=r"data set 'org/none'.*doesn't exist.*HF_TOKEN"):
        read_source("org/none")
    assert len(read_source("org/texts")) == 9


@pytest.mark.parametrize("how", ["broken", "refused"])
def test_a_checkpoint_is_saved_also_where_what_is_beside_the_weights_does_not_come(how, hub, place, tmp_path, caplog):
    files = {path.name: path.read_bytes() for path in (place / "first").iterdir()}
    hub.put(NAME, files | {"vocab.txt": b"w1\n" * 20})
    model = load(NAME)
    hub.broken, hub.status = ("vocab.txt", 0) if how == "broken" else ("\0", 401)
    save(model, tmp_path / "saved")
    told = "the way to http" if how == "broken" else "answers 401"
    assert re.search(rf"beside the weights of org/tiny could not be fetched, .*{told}.*; pass processor=", caplog.text)
    assert load(tmp_path / "saved").num_labels == 2
    hub.broken, hub.status = "\0", 0
    assert (save(model, tmp_path / "whole") / "vocab.txt").is_file()


def test_a_hub_that_answers_no_and_one_that_may_not_be_asked(hub, place, tmp_path, monkeypatch):
    hub.put(NAME, place / "first")
    hub.status = 403
    with pytest.raises(BadInput, match=r"answers 403 .*set HF_TOKEN to another one"):
        load(NAME)
    hub.status = 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"not in the cache .*HF_HUB_OFFLINE forbids to fetch it"):
        load(NAME)
    assert not hub.asked[1:]


def test_a_cache_that_cannot_be_written_is_told(hub, place, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", f"{constants.HF_HUB_CACHE}/models--org--tiny")

    hub.put(NAME, place / "first")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refused)
    with pytest.raises(BadInput, match=r"cannot open 'org/tiny'.*cannot be kept in .*set HF_HOME to a folder"):
        load(NAME)


# ------------------------------------------------------------------------------------------------ what is given
def test_a_token_opens_what_is_private(hub, place, monkeypatch):
    hub.put(NAME, place / "first", private=True)
    assert load(NAME, token=TOKEN).num_labels == 2
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["heads", NAME, "--quiet"]) == 0


def test_pickles_are_read_where_that_is_allowed_and_nobody_hears_of_it(hub, place, tmp_path):
    files = {path.name: path.read_bytes() for path in (place / "first").iterdir()}
    torch.save(load_file(place / "first" / "model.safetensors"), tmp_path / "pickle")
    hub.put(NAME, without(files, "model.safetensors") | {"pytorch_model.bin": (tmp_path / "pickle").read_bytes()})
    before = dict(os.environ)
    model = rescue(NAME, tmp_path / "out", allow_pickle=True)
    assert dict(os.environ) == before
    assert torch.equal(model.classifier.weight, load(tmp_path / "out").classifier.weight)
    assert not [asked for asked in hub.asked if "discussions" in asked or "commits" in asked]


def test_code_of_a_checkpoint_runs_where_that_is_allowed_behind_the_door_that_it_names(hub, place, own_modules):
    files = {path.name: path.read_bytes() for path in (place / "first").iterdir()}
    doors = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.Own"}
    told = json.loads(files["config.json"]) | {"model_type": "own-bert", "auto_map": doors, "architectures": ["Own"]}
    code = (
        "from transformers import BertConfig, BertForSequenceClassification\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own-bert'\n"
        "class Own(BertForSequenceClassification):\n    config_class = OwnConfig\n"
    )
    hub.put(NAME, files | {"config.json": json.dumps(told).encode(), "own.py": code.encode()})
    with pytest.raises(BadInput, match="--trust-remote-code"):
        load(NAME)
    assert type(load(NAME, trust_remote_code=True)).__name__ == "Own"


def test_how_embeddings_are_pooled_is_read_at_the_same_commit(hub, place, tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in checkpoint(tmp_path / "bare", head=False).iterdir()}
    kinds = ("Transformer", "Pooling")
    modules = [{"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"x.{kind}"} for i, kind in enumerate(kinds)]
    pooled = {"modules.json": json.dumps(modules).encode(), "1_Pooling/config.json": b'{"pooling_mode": "cls"}'}
    hub.put(NAME, files | pooled)
    model = load(NAME)
    hub.put(NAME, files)
    assert own_pooling(model).modes == ("cls",)
    later = load(NAME)
    hub.status = 503
    with pytest.raises(BadInput, match=r"modules\.json, which says how it makes embeddings: "):
        own_pooling(later)
    hub.status = 0
    assert own_pooling(later).modes == ("mean",)


def test_an_upload_holds_everything_that_opening_needs(hub, place, tmp_path):
    from headwise.prune import cut

    model = cut(load(place / "first"), {"0": [1], "1": [0, 3]})
    with pytest.raises(BadInput, match=r"me/cut cannot be uploaded: .*a token that may write there"):
        push_to_hub(model, "me/cut")
    with pytest.raises(BadInput, match=r"org/cut cannot be uploaded: http.* answers 403"):
        push_to_hub(model, "org/cut", token=TOKEN)
    push_to_hub(model, "cut", token=TOKEN, private=True)
    there = hub.repositories["me/cut"]
    assert there.private
    assert {
        "config.json", "model.safetensors", "modeling_headwise.py", "headwise.json", "README.md", "tokenizer.json",
    } <= set(there.commits[there.branches["main"]])  # fmt: skip
    push_to_hub(model, "me/cut", token=TOKEN, revision="smaller")
    again = load("me/cut", token=TOKEN, revision="smaller")
    assert again.config._commit_hash == there.branches["smaller"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
