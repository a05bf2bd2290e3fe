"""What is no checkpoint with heads to cut: each kind is told what it is and what to do."""

import json
import re

import pytest
import torch
import transformers

from headwise.analysis.errors import BadInput
from headwise.prune.checkpoint import load
from headwise.prune.cli.app import main
from tests.prune.tiny_run import checkpoint, table

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 50}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, **SIZES}
REMOTE = {"AutoConfig": "configuration_my.MyConfig", "AutoModel": "modeling_my.MyModel"}
KINDS = {
    "bitsandbytes": (LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
                     r"quantised \(bitsandbytes\).*dequantise first"),
    "gptq": (LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantised \(gptq\)"),
    "fnet": ({"model_type": "fnet", "architectures": ["FNetModel"], **SIZES}, "no attention, so it has no heads"),
    "mamba": ({"model_type": "mamba", "architectures": ["MambaModel"], **SIZES}, "no attention, so it has no heads"),
    "rwkv": ({"model_type": "rwkv", "architectures": ["RwkvModel"], **SIZES}, r"RwkvSelfAttention.*A site needs query"),
    "remote code": ({"model_type": "mymodel", "auto_map": REMOTE}, "--trust-remote-code.*usual layout"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "told"), KINDS.values(), ids=KINDS.keys())
def test_heads_says_what_it_is_and_what_to_do(config, told, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["heads", str(tmp_path)]) == 2
    assert re.search(told, capsys.readouterr().err, flags=re.S)


@pytest.mark.parametrize("verb", ["analyze", "prune"])
def test_quantised_weights_are_refused_also_where_what_reads_them_is_not_installed(verb, tmp_path, capsys):
    model = checkpoint(tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "gptq", "bits": 4}
    }
    (model / "config.json").write_text(json.dumps(config))
    texts = "--texts" if verb == "analyze" else "--calibration"
    given = [texts, str(table(tmp_path / "texts.jsonl")), "--output-dir", str(tmp_path / "out")]
    assert main([verb, str(model), *given]) == 2
    assert re.search(r"weights are quantised \(gptq\).*dequantise first", capsys.readouterr().err)


def test_too_little_memory_for_quantised_weights_is_told_as_that(tmp_path, monkeypatch):
    model = checkpoint(tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(config))

    def full(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", full)
    with pytest.raises(torch.OutOfMemoryError):
        load(model)


def test_attention_in_floats_beside_quantised_experts_is_understood(tmp_path, capsys):
    config = transformers.GptOssConfig(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=2
    )
    said = json.loads(config.to_json_string()) | {"architectures": ["GptOssForCausalLM"]}
    said["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert main(["heads", str(tmp_path)]) == 0


@pytest.mark.parametrize(("file", "told"), [("adapter_config.json", "merge_and_unload"), ("model.gguf", "gguf_file='model.gguf'"),
                                            ("notes.txt", "no config")])  # fmt: skip
def test_a_folder_without_a_model_is_told_apart(file, told, tmp_path, capsys):
    (tmp_path / file).write_text("{}")
    assert main(["heads", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        load(tmp_path)
