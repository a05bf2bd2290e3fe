"""Exports: whole, equal to the model at sizes that the exporter has not seen, and without a trace on the model."""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from headwise.analysis.errors import BadInput
from headwise.prune import cut, export, load
from headwise.prune.cli import main
from headwise.prune.export import onnx_speed, to_onnx, to_program
from headwise.prune.speed.inputs import inputs_to_time
from headwise.prune.speed.operations import operations, parameters
from tests.families import FAMILIES
from tests.models import build
from tests.prune.tiny_run import checkpoint

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BUILD = {
    "bert": (lambda: BertModel(BertConfig(**SIZES, max_position_embeddings=40)), {"0": [1, 2], "1": [3]}),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)), {"0": [0, 1]}),
    "t5": (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=60, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=24, decoder_start_token_id=0)
        ),
        {"encoder.self.0": [1], "decoder.cross.1": [0, 3]},
    ),
    "vit": (
        lambda: ViTForImageClassification(
            ViTConfig(**{n: v for n, v in SIZES.items() if n != "vocab_size"}, image_size=16, patch_size=8)
        ),
        {"0": [1], "1": [0, 3]},
    ),
}


def made(name):
    build, plan = BUILD[name]
    torch.manual_seed(0)
    return cut(build(), plan)


def exported(write, name, file):
    """What is written, once the model was found to be as it was."""
    model = made(name)
    model.train()
    hooks = [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training) for m in model.modules()]
    before = copy.deepcopy(model.config.to_dict())
    assert write(model, file) < 1e-5
    assert [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training) for m in model.modules()] == hooks
    assert model.config.to_dict() == before
    with pytest.raises(BadInput, match="exists and is left"):
        write(model, file)
    return sorted(path.name for path in file.parent.iterdir())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A dense model exported on the command line, and a cut one too large for one file, as far as it knows."""
    folder = tmp_path_factory.mktemp("exported")
    checkpoint(folder / "dense", head=False, **SIZES, max_position_embeddings=40)
    assert main(["export", str(folder / "dense"), str(folder / "dense.onnx"), "--quiet"]) == 0
    (folder / "cut").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_ONE_FILE", 0)
        assert exported(to_onnx, "bert", folder / "cut" / "model.onnx") == ["model.onnx", "model.onnx.data"]
    return folder


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (to_program, "bert"),
        *(pytest.param(write, name, marks=pytest.mark.slow) for write in (to_onnx, to_program)
          for name in ("llama", "t5", "vit")),
    ],
)  # fmt: skip
def test_a_cut_model_is_exported_equal(write, name, tmp_path):
    assert exported(write, name, tmp_path / "model.bin") == ["model.bin"]


def test_an_onnx_file_takes_any_batch_and_length_and_padding(place):
    model = made("bert").eval()
    session = onnxruntime.InferenceSession(str(place / "cut" / "model.onnx"), providers=["CPUExecutionProvider"])
    for batch, length in ((1, 5), (5, 33)):
        ids = torch.randint(1, 60, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, 3:] = 0
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        with torch.inference_mode():
            right = model(input_ids=ids, attention_mask=mask).last_hidden_state
        np.testing.assert_allclose(session.run(None, feed)[0], right.numpy(), atol=2e-5)


def test_exported_files_are_timed_side_by_side(place, capsys):
    said = ["speed", place / "cut" / "model.onnx", "--against", place / "dense.onnx", "--json"]
    said += ["--batches", "2", "--lengths", "8,99", "--rounds", "6", "--threads", "1"]
    assert main([str(word) for word in [*said, "--set", "limits.speedup=1000"]]) == 3
    out, err = capsys.readouterr()
    assert "speedup: at least 1000x asked" in err
    speed = json.loads(out)["speed"]
    assert speed["notes"] == ["length 99 is more than the model's positions allow"]
    dense, smaller = load(place / "dense"), made("bert")
    assert speed["parameters"] == {"dense": parameters(dense), "cut": parameters(smaller)}
    (row,) = speed["rows"]
    assert (row["batch"], row["length"]) == (2, 8)
    assert row["drift"]["low"] <= row["drift"]["median"] <= row["drift"]["high"]
    # The files say their operations for any length; the models count them.
    for file, model, counted in (
        (place / "dense.onnx", dense, "dense"),
        (place / "cut" / "model.onnx", smaller, "cut"),
    ):
        assert row["operations"][counted] == operations(model, inputs_to_time(model, 2, 8))
        assert onnx_speed.opened(str(file)).operations(3, 17) == operations(model, inputs_to_time(model, 3, 17))
    assert speed["bytes"]["cut"] > parameters(smaller) * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed", "dense.onnx", "--against", "dense"], "timed against another ONNX file"),
        (["speed", "nothing.onnx"], "no such file"),
        (["speed", "broken.onnx"], "cannot open it"),
        (["speed", "dense.onnx", "--kernel", "sdpa"], "--kernel: not for ONNX files"),
        (["export", "dense", "dense.onnx"], "exists and is left as it is"),
        (["export", "dense", "cut"], "is a folder"),
        (["export", "nothing", "new.onnx"], "nothing"),
    ],
)
def test_what_cannot_be_done_with_files_is_said(words, message, place, capsys):
    (place / "broken.onnx").write_bytes(b"no model")
    paths = [
        word if word.startswith("-") or word in ("speed", "export", "sdpa") else str(place / word) for word in words
    ]
    assert main(paths) == 2
    assert message in capsys.readouterr().err


def test_a_native_checkpoint_is_written_for_any_engine(place, capsys):
    assert main(["export", str(place / "dense"), str(place / "plain"), "--to", "native", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(place / "plain"), "form": "native", "difference": None
    }  # fmt: skip
    assert (place / "plain" / "config.json").is_file()
    assert not (place / "plain" / "headwise.json").exists()
    assert torch.equal(
        BertModel.from_pretrained(place / "plain").embeddings.word_embeddings.weight,
        load(place / "dense").embeddings.word_embeddings.weight,
    )


def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path):
    class Reads(BertModel):
        def forward(self, input_ids, attention_mask=None, **kwargs):
            if float(input_ids.sum()) > 3:  # depends on values: no program can say it
                return super().forward(input_ids, attention_mask=attention_mask)
            return super().forward(input_ids)

    model = Reads(BertConfig(**SIZES))
    for write in (to_onnx, to_program):
        with pytest.raises(BadInput, match="Reads cannot be exported") as told:
            write(model, tmp_path / "model.bin")
        # What torch stumbled over, not how to report it.
        assert "data-dependent" in str(told.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInput, match="is no folder"):
        to_onnx(model, tmp_path / "nowhere" / "model.onnx")


@pytest.mark.parametrize(("name", "needs"), [("clip", "needs pixel_values beside tokens"),
                                             ("whisper", "needs tokens beside what it hears or sees")])  # fmt: skip
def test_models_of_two_inputs_are_refused_with_what_to_export(name, needs, tmp_path):
    for write in (to_onnx, to_program):
        with pytest.raises(BadInput, match=f"{needs}, and a file takes one kind of input; export the part"):
            write(build(FAMILIES[name]), tmp_path / "model.bin")
    assert not list(tmp_path.iterdir())


def test_onnxruntime_reports_nothing_to_its_makers(tmp_path):
    """A process of its own: the variable counts when the library is first imported."""
    run = (
        "import os; from headwise.prune.export.onnx_runtime import onnxruntime; onnxruntime();"
        "print(os.environ['ORT_DISABLE_TELEMETRY'], *os.listdir(os.environ['HOME']))"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True, env=env | {"HOME": str(tmp_path)}
    )
    assert done.stdout == "1\n"
