"""A checkpoint that is replaced, in part or whole, between start and resume: noticed, whatever its shapes."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.analysis.errors import BadInput
from headwise.prune import inspection, pipeline
from headwise.prune.environment import unchanged
from headwise.prune.recipe import Recipe
from tests.prune import tiny_run


def other_weights(model):
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(10.0))
    save_file(tensors, file, metadata={"format": "pt"})


def other_words(model):
    file = model / "tokenizer.json"
    read = json.loads(file.read_text())
    known = read["model"]["vocab"]
    known["w0"], known["w1"] = known["w1"], known["w0"]
    file.write_text(json.dumps(read))


def other_settings(model):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_eps": 1e-3}))


def test_a_checkpoint_replaced_before_resuming_is_noticed(tmp_path, monkeypatch):
    model = tiny_run.checkpoint(tmp_path / "model")
    texts = tiny_run.table(tmp_path / "texts.jsonl")
    recipe, speed = Recipe.load("gradient", tiny_run.settings(model, texts)), pipeline._speed

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_speed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, output_dir=tmp_path / "run")
    monkeypatch.setattr(pipeline, "_speed", speed)
    for change, told in (
        (other_weights, f"the model {model} changed since the run began"),
        (other_words, "^the tokenizer changed since the run began"),
        (other_settings, f"^the configuration of {model} changed since the run began"),
    ):
        kept = {path: path.read_bytes() for path in model.iterdir()}
        change(model)
        with pytest.raises(BadInput, match=told):
            pipeline.run(recipe, output_dir=tmp_path / "run", resume=True)
        for path, content in kept.items():
            path.write_bytes(content)
    assert pipeline.run(recipe, output_dir=tmp_path / "run", resume=True).folder.is_dir()


def made(**changes):
    """An environment, as far as it counts; `changes` of what it says."""
    said = {"hash": "1", "config": "2", "calibration": "3", "tokens": "4", "evaluation": "5"} | changes
    texts = {"calibration": {"hash": said["calibration"], "tokens": said["tokens"]}}
    texts["evaluation"] = {"hash": said["evaluation"]}
    return {"model": {"id": "m", "hash": said["hash"], "config": said["config"]}, "texts": texts}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hash": "x"}, "the model m changed"),
        ({"config": "x"}, "the configuration of m changed"),
        ({"tokens": "x"}, "the tokenizer changed"),
        ({"calibration": "x", "tokens": "x"}, r"the texts of data\.calibration changed"),
        ({"hash": "x", "evaluation": "x"}, r"the model m and the texts of data\.evaluation changed"),
    ],
)
def test_all_that_changed_is_told(changes, told):
    unchanged(made(), made())
    with pytest.raises(BadInput, match=f"^{told} since the run began"):
        unchanged(made(), made(**changes))
    with pytest.raises(BadInput, match="changed since the analysis began"):
        inspection._same(made(), made(**changes | {"calibration": "x"}))


def test_a_run_that_began_before_this_was_told_is_resumed():
    old = made()
    del old["model"]["config"], old["texts"]["calibration"]["tokens"]
    unchanged(old, made())
