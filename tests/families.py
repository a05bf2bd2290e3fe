"""The matrix: one small model of every attention family, as data. A new family is one entry here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

# Why a few forwards can be gated but not cut.
HIDDEN = "reshapes the context to the hidden size"


@dataclass(frozen=True)
class Expected:
    """A site as it must be found, with the output projection that the oracle blanks.

    Attributes:
        name: of the site.
        output: path of the projection from the base model; alternatives (other releases) with `|`; a
            parameter with a head axis as `module:name`.
        heads: query heads.
        kv: key/value heads.
    """

    name: str
    output: str
    heads: int = 4
    kv: int = 4


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        name: how people call it.
        auto: the class to build it as.
        config: its configuration class.
        values: the configuration's numbers.
        sites: what must be found, in order.
        inputs: kind of inputs, see `models.inputs_of`.
        generates: whether greedy generation is compared, too.
        refusal: part of the reason why it cannot be cut, or ``.
        calls: how often one module is called (ALBERT).
        build: another way to make the model than `auto.from_config`, by name, see `models.py`.
        since: the first release that can build it.
        cut_since: the first release in which it can be cut; before, its forward reshapes to the hidden size.
    """

    name: str
    auto: str
    config: str
    sites: tuple[Expected, ...]
    values: dict[str, Any] = field(default_factory=dict)
    inputs: str = "text"
    generates: bool = False
    refusal: str = ""
    calls: int = 1
    build: str = ""
    since: str = "5.0"
    cut_since: str = "5.0"

    def refused(self, release: str) -> str:
        """Part of the reason why it cannot be cut with a release of transformers, or ``."""
        return self.refusal or (HIDDEN if Version(release) < Version(self.cut_since) else "")


# ------------------------------------------------------------------------------------------------ sizes
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SIZES, "vocab_size": 99, "max_position_embeddings": 64}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, **IDS, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {**SIZES, "image_size": 16, "patch_size": 4}
SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
           "max_position_embeddings": 64, "decoder_start_token_id": 0, **IDS}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
      "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99, "bos_token_id": 1,
          "eos_token_id": 2}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
WAVE = {**TEXT, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2, "pad_token_id": 0, "layerdrop": 0.0, "mask_time_prob": 0.0}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {**TEXT, **IDS, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
          "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}  # fmt: skip
WINDOWED = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
            "window_size": 4}  # fmt: skip
TOWERS = {"text_config": {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 98}, "vision_config": IMAGE,
          "projection_dim": 32}  # fmt: skip


def sites(output: str, count: int = 2, *, name: str = "{i}", heads: int = 4, kv: int = 0) -> tuple[Expected, ...]:
    """One expected site a layer; `{i}` stands for the layer."""
    return tuple(Expected(name.format(i=i), output.replace("{i}", str(i)), heads, kv or heads) for i in range(count))


def seq2seq(encoder: str, own: str, cross: str, count: int = 2, *, kv: int = 0) -> tuple[Expected, ...]:
    """Encoder sites, then decoder and cross sites by turns."""
    found = list(sites(encoder, count, name="encoder.self.{i}", kv=kv))
    for i in range(count):
        found += [Expected(f"decoder.self.{i}", own.replace("{i}", str(i)), 4, kv or 4),
                  Expected(f"decoder.cross.{i}", cross.replace("{i}", str(i)), 4, kv or 4)]  # fmt: skip
    return tuple(found)


BERT = sites("encoder.layer.{i}.attention.output.dense")
LLAMA = sites("layers.{i}.self_attn.o_proj", kv=2)
LLAMA_FULL = sites("layers.{i}.self_attn.o_proj")
BART = seq2seq("encoder.layers.{i}.self_attn.out_proj", "decoder.layers.{i}.self_attn.out_proj",
               "decoder.layers.{i}.encoder_attn.out_proj")  # fmt: skip
T5_SITES = seq2seq("encoder.block.{i}.layer.0.SelfAttention.o", "decoder.block.{i}.layer.0.SelfAttention.o",
                   "decoder.block.{i}.layer.1.EncDecAttention.o")  # fmt: skip
VIT = sites("layers.{i}.attention.o_proj|encoder.layer.{i}.attention.output.dense")
DINO = sites("encoder.layer.{i}.attention.o_proj|encoder.layer.{i}.attention.output.dense")
CLIP = sites("encoder.layers.{i}.self_attn.out_proj|vision_model.encoder.layers.{i}.self_attn.out_proj"
             "|text_model.encoder.layers.{i}.self_attn.out_proj")  # fmt: skip
W2V = sites("encoder.layers.{i}.attention.out_proj")
DUAL = tuple(
    Expected(f"{tower}.self.{i}", f"{tower}_model.encoder.layers.{i}.self_attn.out_proj"
             f"|{tower}_model.{tower}_model.encoder.layers.{i}.self_attn.out_proj")
    for tower in ("text", "vision") for i in range(2)
)  # fmt: skip
POOLED = (*CLIP, Expected("pool.0", "head.attention.out_proj|vision_model.head.attention.out_proj"))
SWIN = tuple(
    Expected(str(i), f"encoder.layers.{i}.blocks.0.attention.{{o}}", heads, heads) for i, heads in enumerate((2, 4))
)
WORDS, LM, S2S = "AutoModelForSequenceClassification", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
PICTURES = "AutoModelForImageClassification"


def _swin(tail: str) -> tuple[Expected, ...]:
    return tuple(Expected(e.name, "|".join(e.output.format(o=o) for o in tail.split("|")), e.heads, e.kv) for e in SWIN)


def _vlm() -> tuple[Expected, ...]:
    block = "encoder.layers.{i}.self_attn.out_proj"
    vision = f"vision_tower.vision_model.{block}|vision_tower.{block}"
    return (
        *sites(vision, name="vision.self.{i}"),
        *sites("language_model.layers.{i}.self_attn.o_proj", name="text.self.{i}", kv=2),
    )


# ------------------------------------------------------------------------------------------------ text encoders
_ENCODERS = [
    Family(name, WORDS, config, BERT, TEXT)
    for name, config in (("bert", "BertConfig"), ("roberta", "RobertaConfig"), ("xlm-r", "XLMRobertaConfig"),
                         ("camembert", "CamembertConfig"))
]  # fmt: skip
_ENCODERS += [
    Family("electra", WORDS, "ElectraConfig", BERT, {**TEXT, "embedding_size": 16}),
    Family("esm", WORDS, "EsmConfig", BERT, {**TEXT, "pad_token_id": 0, "mask_token_id": 3,
                                             "position_embedding_type": "rotary"}),
    Family("distilbert", WORDS, "DistilBertConfig", sites("transformer.layer.{i}.attention.out_lin"),
           {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99, "max_position_embeddings": 64}),
    Family("albert", WORDS, "AlbertConfig",
           tuple(Expected(str(i), "encoder.albert_layer_groups.0.albert_layers.0.attention.dense") for i in range(2)),
           {**TEXT, "embedding_size": 16}, calls=2),
    Family("deberta", WORDS, "DebertaConfig", BERT,
           {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    Family("deberta-v2", WORDS, "DebertaV2Config", BERT,
           {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16,
            "share_att_key": True}),
    Family("deberta-v2-own", WORDS, "DebertaV2Config", BERT,
           {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": False}),
    Family("mpnet", WORDS, "MPNetConfig", sites("encoder.layer.{i}.attention.attn.o"), TEXT),
    Family("modernbert", WORDS, "ModernBertConfig", sites("layers.{i}.attn.Wo"),
           {**TEXT, **IDS, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2,
            "local_attention": 8}),
    Family("nomic-bert", "AutoModel", "NomicBertConfig", sites("layers.{i}.self_attn.o_proj"),
           {**TEXT, "pad_token_id": 0}, since="5.9"),
    Family("xlnet", WORDS, "XLNetConfig", sites("layer.{i}.rel_attn:o"),
           {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 99}),
    Family("longformer", WORDS, "LongformerConfig", BERT, {**TEXT, "attention_window": 8, "pad_token_id": 0},
           refusal=HIDDEN),
    Family("big-bird", WORDS, "BigBirdConfig", BERT, {**TEXT, **IDS, "attention_type": "original_full"}),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ decoders
_DECODERS = [
    Family("gpt2", LM, "GPT2Config", sites("h.{i}.attn.c_proj"), GPT2, generates=True),
    Family("gpt2-cross", LM, "GPT2Config",
           tuple(Expected(f"{kind}.{i}", f"h.{i}.{part}.c_proj") for i in range(2)
                 for kind, part in (("self", "attn"), ("cross", "crossattention"))),
           {**GPT2, "add_cross_attention": True}, inputs="cross"),
    Family("gpt-neo", LM, "GPTNeoConfig", sites("h.{i}.attn.attention.out_proj"),
           {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
            "vocab_size": 99, "max_position_embeddings": 64, "window_size": 8, "bos_token_id": 1, "eos_token_id": 2},
           generates=True),
    Family("gpt-neox", LM, "GPTNeoXConfig", sites("layers.{i}.attention.dense"),
           {**TEXT, "bos_token_id": 1, "eos_token_id": 2}, generates=True),
    Family("gptj", LM, "GPTJConfig", sites("h.{i}.attn.out_proj"), {**GPT2, "rotary_dim": 4}, generates=True),
    Family("gpt-bigcode", LM, "GPTBigCodeConfig", sites("h.{i}.attn.c_proj", kv=1), {**GPT2, "multi_query": True},
           generates=True),
    Family("gpt-bigcode-mha", LM, "GPTBigCodeConfig", sites("h.{i}.attn.c_proj"), {**GPT2, "multi_query": False},
           generates=True),
    Family("codegen", LM, "CodeGenConfig", sites("h.{i}.attn.out_proj"), {**GPT2, "rotary_dim": 4}, generates=True,
           refusal="four fixed partitions"),
    Family("opt", LM, "OPTConfig", sites("decoder.layers.{i}.self_attn.out_proj"),
           {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "vocab_size": 99,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32}, generates=True),
    Family("bloom", LM, "BloomConfig", sites("h.{i}.self_attention.dense"),
           {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, generates=True),
    Family("falcon", LM, "FalconConfig", sites("h.{i}.self_attention.dense", kv=2),
           {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, generates=True),
    Family("falcon-mq", LM, "FalconConfig", sites("h.{i}.self_attention.dense", kv=1),
           {**FALCON, "new_decoder_architecture": False, "multi_query": True}, generates=True),
    Family("falcon-alibi", LM, "FalconConfig", sites("h.{i}.self_attention.dense"),
           {**FALCON, "new_decoder_architecture": False, "multi_query": False, "alibi": True}, generates=True),
    Family("mpt", LM, "MptConfig", sites("blocks.{i}.attn.out_proj"),
           {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 99, "max_seq_len": 64}, generates=True),
    Family("phi", LM, "PhiConfig", sites("layers.{i}.self_attn.dense", kv=2), GROUPED, generates=True),
    Family("stablelm-qknorm", LM, "StableLmConfig", LLAMA, {**GROUPED, "qk_layernorm": True}, generates=True),
    Family("cohere-qknorm", LM, "CohereConfig", LLAMA, {**GROUPED, "use_qk_norm": True}, generates=True),
    Family("gemma", LM, "GemmaConfig", LLAMA, GROUPED, generates=True),
    Family("llama-wide", LM, "LlamaConfig", LLAMA, {**GROUPED, "head_dim": 16}, generates=True),
    Family("llama-full", LM, "LlamaConfig", LLAMA_FULL, {**GROUPED, "num_key_value_heads": 4}, generates=True),
    Family("mixtral", LM, "MixtralConfig", LLAMA, {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
           generates=True),
    Family("qwen2-moe", LM, "Qwen2MoeConfig", LLAMA, {**GROUPED, **MOE, "shared_expert_intermediate_size": 32},
           generates=True),
    Family("qwen3-moe", LM, "Qwen3MoeConfig", LLAMA, {**GROUPED, **MOE}, generates=True),
    Family("olmoe", LM, "OlmoeConfig", LLAMA, {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, generates=True),
    Family("gpt-oss", LM, "GptOssConfig", LLAMA,
           {**GROUPED, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2}, generates=True),
    Family("deepseek-v2", LM, "DeepseekV2Config", LLAMA_FULL, {**LATENT, "n_shared_experts": 1}, generates=True),
    Family("deepseek-v3", LM, "DeepseekV3Config", LLAMA_FULL, {**LATENT, "n_shared_experts": 1}, generates=True),
]  # fmt: skip
_DECODERS += [
    Family(name, LM, config, LLAMA, {**GROUPED, **({"sliding_window": 4} if window else {})}, generates=True)
    for name, config, window in (
        ("llama", "LlamaConfig", False), ("mistral", "MistralConfig", True), ("qwen2", "Qwen2Config", False),
        ("qwen3", "Qwen3Config", False), ("gemma2", "Gemma2Config", True), ("gemma3", "Gemma3TextConfig", True),
        ("olmo", "OlmoConfig", False), ("olmo2", "Olmo2Config", False), ("olmo3", "Olmo3Config", True),
        ("granite", "GraniteConfig", False), ("smollm3", "SmolLM3Config", False), ("cohere", "CohereConfig", False),
        ("cohere2", "Cohere2Config", True), ("starcoder2", "Starcoder2Config", False), ("phi3", "Phi3Config", False),
        ("stablelm", "StableLmConfig", False))
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ encoder-decoders
_PAIRS = [
    Family(name, S2S, config, BART, SEQ2SEQ, "seq2seq", generates=True)
    for name, config in (("bart", "BartConfig"), ("mbart", "MBartConfig"), ("marian", "MarianConfig"),
                         ("pegasus", "PegasusConfig"), ("m2m100", "M2M100Config"), ("blenderbot", "BlenderbotConfig"))
]  # fmt: skip
_PAIRS += [
    Family(name, S2S, config, T5_SITES, T5, "seq2seq", generates=True)
    for name, config in (("t5", "T5Config"), ("mt5", "MT5Config"), ("umt5", "UMT5Config"))
]
_PAIRS += [
    Family("t5-deep", S2S, "T5Config",
           seq2seq("encoder.block.{i}.layer.0.SelfAttention.o", "decoder.block.{i}.layer.0.SelfAttention.o",
                   "decoder.block.{i}.layer.1.EncDecAttention.o", 4),
           {**T5, "num_layers": 4}, "seq2seq", generates=True),
    Family("flan-t5", S2S, "T5Config", T5_SITES,
           {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "seq2seq", generates=True),
    Family("led", S2S, "LEDConfig",
           seq2seq("encoder.layers.{i}.self_attn.output", "decoder.layers.{i}.self_attn.out_proj",
                   "decoder.layers.{i}.encoder_attn.out_proj"),
           {**{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"}, "attention_window": 8,
            "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}, "seq2seq", refusal=HIDDEN),
    Family("longt5", S2S, "LongT5Config",
           seq2seq("encoder.block.{i}.layer.0.LocalSelfAttention.o", "decoder.block.{i}.layer.0.SelfAttention.o",
                   "decoder.block.{i}.layer.1.EncDecAttention.o"),
           {**T5, "local_radius": 4, "encoder_attention_type": "local"}, "seq2seq", generates=True),
    Family("whisper", "AutoModelForSpeechSeq2Seq", "WhisperConfig", BART,
           {**{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"}, "num_mel_bins": 8,
            "max_source_positions": 32, "max_target_positions": 64, "suppress_tokens": None,
            "begin_suppress_tokens": None}, "whisper", generates=True),
    Family("encoder-decoder", "EncoderDecoderModel", "EncoderDecoderConfig",
           (*sites("encoder.encoder.layer.{i}.attention.output.dense", name="encoder.self.{i}"),
            *(Expected(f"decoder.{kind}.{i}", f"decoder.bert.encoder.layer.{i}.{part}.output.dense") for i in range(2)
              for kind, part in (("self", "attention"), ("cross", "crossattention")))),
           TEXT, "seq2seq", build="bert2bert"),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ vision, audio, both
_SENSES = [
    Family("vit", PICTURES, "ViTConfig", VIT, IMAGE, "image"),
    Family("deit", "AutoModel", "DeiTConfig", VIT, IMAGE, "image"),
    Family("dinov2", PICTURES, "Dinov2Config", DINO, IMAGE, "image"),
    Family("dinov3", "AutoModel", "DINOv3ViTConfig",
           sites("layer.{i}.attention.o_proj|model.layer.{i}.attention.o_proj"), IMAGE, "image"),
    Family("beit", PICTURES, "BeitConfig", VIT, {**IMAGE, "use_relative_position_bias": True}, "image"),
    Family("beit-shared", PICTURES, "BeitConfig", VIT, {**IMAGE, "use_shared_relative_position_bias": True}, "image"),
    Family("swin", PICTURES, "SwinConfig", _swin("o_proj|output.dense"),
           WINDOWED, "image"),
    Family("swinv2", PICTURES, "Swinv2Config", _swin("output.dense|o_proj"),
           WINDOWED, "image"),
    Family("clip-vision", "AutoModel", "CLIPVisionConfig", CLIP, IMAGE, "image"),
    Family("clip-text", "AutoModel", "CLIPTextConfig", CLIP,
           {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 98}),
    Family("clip", "AutoModel", "CLIPConfig", DUAL, TOWERS, "clip"),
    Family("siglip", "AutoModel", "SiglipConfig",
           (*DUAL, Expected("pool.0", "vision_model.head.attention.out_proj"
                                      "|vision_model.vision_model.head.attention.out_proj")),
           {key: value for key, value in TOWERS.items() if key != "projection_dim"}, "clip", cut_since="5.6"),
    Family("siglip-vision", "AutoModel", "SiglipVisionConfig", POOLED, IMAGE, "image", cut_since="5.6"),
    Family("blip", "BlipForConditionalGeneration", "BlipConfig",
           (*sites("/vision_model.encoder.layers.{i}.self_attn.projection", name="vision.self.{i}"),
            *(Expected(f"text.{kind}.{i}", f"/text_decoder.bert.encoder.layer.{i}.{part}.output.dense")
              for i in range(2) for kind, part in (("self", "attention"), ("cross", "crossattention")))),
           {"text_config": {**TEXT, **IDS, "encoder_hidden_size": 32, "is_decoder": True}, "vision_config": IMAGE,
            "projection_dim": 32}, "clip", refusal=HIDDEN),
    Family("llava", "LlavaForConditionalGeneration", "LlavaConfig", _vlm(),
           {"text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **IMAGE}, "image_token_id": 97,
            "image_token_index": 97, "vision_feature_layer": -1}, "vlm"),
    Family("wav2vec2", "AutoModelForCTC", "Wav2Vec2Config", W2V, WAVE, "wave"),
    Family("hubert", "AutoModelForCTC", "HubertConfig", W2V, WAVE, "wave"),
    Family("wavlm", "AutoModelForCTC", "WavLMConfig", W2V, WAVE, "wave", refusal="position gate"),
]  # fmt: skip

FAMILIES: dict[str, Family] = {f.name: f for f in (*_ENCODERS, *_DECODERS, *_PAIRS, *_SENSES)}
