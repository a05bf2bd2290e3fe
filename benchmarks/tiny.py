"""Tiny models of any configuration class: sizes shrunk by the names of its fields, parts included."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

# Field names to sizes; the first pattern that matches the whole name wins.
SIZES: tuple[tuple[str, int], ...] = (
    (r".*(kv_heads|key_value_heads|kv_head)", 2),
    (r"(.*_)?(num_|n_)?(attention_|attn_|self_attention_|index_)?(heads?|nheads?)", 4),
    (r"(qk_nope_|qk_rope_|v_|.*_)?head_dim|d_kv|attention_head_size|kv_channels|head_size|d_head|dim_head", 8),
    (r".*(vocab_size|codebook_size|num_embeddings|codevector_dim).*", 128),
    (r".*(ffn|intermediate|feedforward|d_ff|d_inner|mlp_dim|inner_dim|shared_expert).*", 64),
    (r"(.*_)?(num_|n_)?(experts|local_experts|routed_experts|mem_blocks)", 4),
    (r"(.*_)?(experts_per_tok|num_experts_per_token|top_?k|moe_topk|.*topk)", 2),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"(.*_)?(num_|n_)?(hidden_|encoder_|decoder_|hidden_group_)?(layers|layer|blocks|n_blocks|depth|hidden_layers)", 2),
    (r".*(max_position|n_positions|n_ctx|max_.*positions|context_length|max_seq|model_max).*", 64),
    (r"q_lora_rank|kv_lora_rank|.*lora_rank|.*_lora.*", 16),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|.*hidden_(size|dim)|.*embed_dim|embedding_size|projection_dim|emb_dim"
     r"|word_embed_proj_dim|.*output_dim|output_hidden_size|out_hidden_size|.*_embed_size|encoder_dim|.*hidden_channels"
     r"|.*model_dim|.*embedding_dim|.*proj_dim|.*embd|conv_dim|vision_output_dim|.*projection_size|.*d_model|width", 32),
    (r".*num_mel_bins|input_feat_per_channel|.*n_mels|.*mel_bins", 16),
)  # fmt: skip
LISTED_DEPTHS = re.compile(r"depths|num_blocks|layer_depths|blocks_per_stage|layers_per_stage")
SPECIAL = re.compile(r".*(token_id|token_index|_id)$")
VOCABULARY = 128
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
ROTARY_BY_LAYER = {"full_attention": ROTARY}
# What some classes insist on besides, by model type.
OVERRIDES: dict[str, dict[str, Any]] = {
    "apertus1p5": {
        "image_token_offset": 0,
        "audio_token_offset": 64,
        "vision_config.codebook_size": 64,
        "audio_config.codebook_size": 64,
        "audio_config.codebook_dim": 32,
    },
    "chameleon": {"vocabulary_map": {"<image>": 90, "IMGIMGAZ": 91, "IMGIMGBZ": 92}},
    "cohere_compass_text": {"layer_types": ["full_attention", "full_attention"], "rope_parameters": ROTARY_BY_LAYER},
    "cohere_compass": {
        "text_config.layer_types": ["full_attention", "full_attention"],
        "text_config.rope_parameters": ROTARY_BY_LAYER,
    },
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "emu3": {
        "vocabulary_map": {"<image>": 90, "<|visual token 000001|>": 91, "<|visual token 000000|>": 92},
        "vq_config.base_channels": 32,
        "vq_config.num_res_blocks": 1,
        "vq_config.channel_multiplier": [1],
    },
    "emu3_vqgan": {"base_channels": 32, "num_res_blocks": 1, "channel_multiplier": [1]},
    "dots3_note_vision_encoder": {
        "mlp_layer_types": ["dense", "sparse"],
        "per_layer_config": None,
        "adapter_in_dim": 32,
        "adapter_out_dim": 32,
    },
    "fast_vlm": {"vision_config.hidden_size": 32},
    "gemma3n": {
        "text_config.num_kv_shared_layers": 0,
        "text_config.layer_types": ["sliding_attention", "full_attention"],
        "text_config.vocab_size_per_layer_input": 128,
        "text_config.activation_sparsity_pattern": [0.0, 0.0],
        "text_config.hidden_size_per_layer_input": 8,
    },
    "glm5_next": {
        "text_config.layer_types": ["linear_attention", "indexed_attention"],
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.indexer_types": ["full", "full"],
        "text_config.linear_num_heads": 4,
        "text_config.linear_head_dim": 8,
        "text_config.qk_nope_head_dim": 8,
        "text_config.index_topk": 16,
        "text_config.n_routed_experts": 4,
        "vision_config.projection_intermediate_size": 32,
    },
    "glm4v_moe_text": {"rope_parameters": ROTARY},
    "glm_image_text": {"rope_parameters": ROTARY},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    "mllama": {"vision_config.intermediate_layers_indices": [0, 1], "vision_config.vision_output_dim": 96},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8},
    "nemotron_h_omni": {
        "vision_config.video_temporal_patch_size": 2,
        "text_config.mamba_num_heads": 8,
        "text_config.mamba_head_dim": 8,
    },
    "diffusion_gemma_text": {"moe_intermediate_size": 32, "num_experts": 4, "top_k_experts": 2},
    "diffusion_gemma": {
        "text_config.moe_intermediate_size": 32,
        "text_config.num_experts": 4,
        "text_config.top_k_experts": 2,
    },
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "esmfold2": {},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "1/1"},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_experts_per_tok": 2},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "bridgetower": {"vision_config.hidden_size": 128, "hidden_size": 128},
    "bridgetower_vision_model": {"hidden_size": 128},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 99, "pad_token_id": 0, "mask_token_id": 3},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": {"text_config.head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},
    "step3p5": {"sliding_window": 4},
    "step3p7": {"text_config.sliding_window": 4},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 0, "num_hidden_layers": 2},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0},
    "glm5_next_text": {"index_topk": 16},
    "rag": {
        "question_encoder": {
            "model_type": "dpr",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "vocab_size": 128,
        },
        "generator": {
            "model_type": "bart",
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": 128,
        },
    },
    "table-transformer": {
        "use_timm_backbone": False,
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 8,
            "hidden_sizes": [8, 8, 8, 8],
            "depths": [1, 1, 1, 1],
            "out_features": ["stage4"],
        },
    },
    "zamba2": {
        "num_hidden_layers": 2,
        "layers_block_type": ["linear_attention", "hybrid"],
        "hybrid_layer_ids": [1],
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "adapter_rank": 8,
    },
    "xmod": {"default_language": "en_XX"},
}


def tiny_configs(cls: type[PreTrainedConfig], overrides: dict[str, Any]) -> Iterator[PreTrainedConfig]:
    """Small configurations to try, one after another: some classes tie their numbers to each other.

    Raises:
        Exception: what the class said to the first, if none could be made.
    """
    made, first = 0, None
    for keep, more in (((), {}), (("head",), {}), ((), {"layers": 4}), ((), {"layers": 8}), (("head", "hidden"), {}),
                       (("head", "hidden", "image", "patch"), {}), (("all",), {})):  # fmt: skip
        try:
            yield cls(**_merged(_shrunk(cls, keep, more.get("layers", 2)), overrides))
            made += 1
        except Exception as error:
            first = first or error
    if not made and first is not None:
        raise first


def _merged(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides by dotted name: `text_config.num_hidden_layers`."""
    for name, value in overrides.items():
        place, *rest = name.split(".", 1)
        values[place] = _merged(dict(values.get(place, {})), {rest[0]: value}) if rest else value
    return values


def model_classes(cls: type[PreTrainedConfig]) -> list[type[PreTrainedModel]]:
    """The classes that `transformers` builds from a configuration class, the most basic first."""
    module = importlib.import_module(cls.__module__.replace("configuration_", "modeling_"))
    found = [member for _, member in inspect.getmembers(module, inspect.isclass)
             if issubclass(member, PreTrainedModel) and member.config_class is cls and member.__module__ == module.__name__
             and not member.__name__.endswith("PreTrainedModel")]  # fmt: skip
    rank = ("Model", "ForConditionalGeneration", "ForCausalLM", "ForSequenceClassification", "ForImageClassification")
    return sorted(found, key=lambda c: (next((i for i, end in enumerate(rank) if c.__name__.endswith(end)), len(rank)),
                                        len(c.__name__)))  # fmt: skip


def build(cls: type[PreTrainedModel], config: PreTrainedConfig, *, most: int = 300_000_000) -> PreTrainedModel:
    """A model with random weights, biases and tables, in evaluation mode."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls(config).parameters())
    if size > most:
        raise ValueError(f"{size / 1e6:.0f} million parameters: not shrunk")
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape) * 0.1)
    return model


def _shrunk(cls: type[PreTrainedConfig], keep: tuple[str, ...], layers: int) -> dict[str, Any]:
    default = cls()
    fields = default.to_dict()
    parts = cls.sub_configs
    values: dict[str, Any] = {}
    for name in inspect.signature(cls.__init__).parameters:
        if name in parts or name not in fields:
            continue
        small = _small(name, fields[name], fields, keep, layers)
        if small != fields[name]:
            values[name] = small
    if "head" in keep and "hidden_size" in values:
        # Rotary sections and the like are tied to the width of a head: keep it, and make the model as wide as it needs.
        heads = next((fields[n] for n in HEADS if isinstance(fields.get(n), int) and fields[n]), 0)
        width = fields.get("head_dim") if isinstance(fields.get("head_dim"), int) else 0
        width = width or (fields["hidden_size"] // heads if heads else 8)
        values["hidden_size"] = min(4, heads or 4) * width
    for name in parts:
        own = getattr(default, name, None)
        if isinstance(own, PreTrainedConfig):
            kind = type(own)
            inner = _shrunk(kind, keep, layers)
            values[name] = {**inner, "model_type": kind.model_type} if kind.model_type else inner
    return values


HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads", "attention_heads")


def _small(name: str, value: Any, fields: dict[str, Any], keep: tuple[str, ...], layers: int) -> Any:
    if isinstance(value, bool) or value is None:
        return 4 if name == "prediction_length" else value
    if isinstance(value, int):
        return _number(name, value, fields, keep, layers)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    ):
        return _list(name, list(value), keep)
    if isinstance(value, dict) and "mrope_section" in value and "head" not in keep:
        return {**value, "mrope_section": [2, 1, 1]}
    return value


def _number(name: str, value: int, fields: dict[str, Any], keep: tuple[str, ...], layers: int) -> int:
    if SPECIAL.fullmatch(name):
        return value if value < VOCABULARY else 100 + sum(map(ord, name)) % 19
    if "image_size" in name:
        return value if "image" in keep else min(value, 32)
    if name == "patch_size":
        return value if "patch" in keep else min(value, 8)
    listed = fields.get("num_heads")
    if name == "embed_dim" and isinstance(listed, (list, tuple)):
        return listed[0] * 8  # Swin's kin: the width doubles with the heads
    size = next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)
    if size is None or _kept(name, keep):
        return value
    if "kv_head" in name or "key_value_head" in name:
        heads = next((fields[n] for n in HEADS if isinstance(fields.get(n), int)), 0)
        return 1 if value == 1 else (4 if value == heads else 2)
    if (size == 2 and "layer" in name) or name in ("depth", "num_blocks"):
        return min(value, layers)
    return min(value, size)


def _kept(name: str, keep: tuple[str, ...]) -> bool:
    if "all" in keep:
        return not any(word in name for word in ("layer", "vocab", "depth", "experts", "blocks"))
    words = {
        "head": ("head_dim", "d_kv", "head_size", "rotary", "dim_head"),
        "hidden": ("hidden", "d_model", "embed", "dim", "width"),
    }
    return any(word in name for group in keep for word in words.get(group, ()))


def _list(name: str, value: list[int], keep: tuple[str, ...]) -> list[int]:
    if LISTED_DEPTHS.fullmatch(name):
        return [min(v, 1) for v in value]
    if "image_size" in name:
        return value if "image" in keep else [min(v, 32) for v in value]
    if "hidden" in keep or "all" in keep:
        return value
    if re.fullmatch(
        r"(.*_)?(hidden_sizes|embed_dims?|neck_hidden_sizes|hidden_dims|channels|encoder_hidden_sizes)", name
    ):
        unit = max(1, value[0] // 16)
        return [16 * max(1, round(v / unit / 16)) for v in value]
    return value
