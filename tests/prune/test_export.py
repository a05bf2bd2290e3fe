"""Exports: whole, equal to the model at sizes that the exporter has not seen, and without a trace on the model."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from headwise.analysis.errors import BadInput
from headwise.prune import cut
from headwise.prune.export import to_onnx, to_program

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
}


def made(name):
    build, plan = BUILD[name]
    torch.manual_seed(0)
    return cut(build(), plan)


@pytest.mark.parametrize(
    "name", ["bert", pytest.param("llama", marks=pytest.mark.slow), pytest.param("t5", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("write", [to_onnx, to_program])
def test_a_cut_model_is_exported_equal(write, name, tmp_path):
    model = made(name)
    model.train()
    hooks = [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training) for m in model.modules()]
    before = copy.deepcopy(model.config.to_dict())
    file = tmp_path / "model.bin"
    assert write(model, file) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]
    assert [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training) for m in model.modules()] == hooks
    assert model.config.to_dict() == before
    with pytest.raises(BadInput, match="exists and is left"):
        write(model, file)


def test_an_onnx_file_takes_any_batch_and_length_and_padding(tmp_path):
    model = made("bert").eval()
    to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for batch, length in ((1, 5), (5, 33)):
        ids = torch.randint(1, 60, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, 3:] = 0
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        with torch.inference_mode():
            right = model(input_ids=ids, attention_mask=mask).last_hidden_state
        np.testing.assert_allclose(session.run(None, feed)[0], right.numpy(), atol=2e-5)


def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path):
    class Reads(BertModel):
        def forward(self, input_ids, attention_mask=None, **kwargs):
            if float(input_ids.sum()) > 3:  # depends on values: no program can say it
                return super().forward(input_ids, attention_mask=attention_mask)
            return super().forward(input_ids)

    model = Reads(BertConfig(**SIZES))
    for write in (to_onnx, to_program):
        with pytest.raises(BadInput, match="Reads cannot be exported"):
            write(model, tmp_path / "model.bin")
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInput, match="is no folder"):
        to_onnx(model, tmp_path / "nowhere" / "model.onnx")
