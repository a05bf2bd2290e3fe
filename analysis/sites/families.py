"""What structure alone cannot tell about attention, as data.

Structure says where a model's projections are (by the names below, checked against their widths). It
does not say in which order a *fused* projection keeps its rows, which forward arguments carry one slice
per head, or which forwards reshape the context to a fixed size. Those facts are here, a line each;
`tests/` measures every one of them against columns zeroed by hand.
"""

from __future__ import annotations

# ------------------------------------------------------------------ names that projections go by
QUERY = (
    "q_proj", "query", "q", "q_lin", "query_proj", "q_attn", "q_b_proj", "Wq", "linear_q", "project_q",
    "q_head", "to_q", "query_layer", "projection_query", "wq", "q_gate_proj", "q_content_proj",
)  # fmt: skip
KEY = (
    "k_proj", "key", "k", "k_lin", "key_proj", "Wk", "linear_k", "project_k", "k_head", "to_k", "key_layer",
    "projection_key", "wk", "k_content_proj",
)  # fmt: skip
VALUE = (
    "v_proj", "value", "v", "v_lin", "value_proj", "Wv", "linear_v", "project_v", "v_head", "to_v",
    "value_layer", "projection_value", "wv",
)  # fmt: skip
FUSED = ("c_attn", "query_key_value", "qkv", "qkv_proj", "Wqkv", "in_proj", "att_proj", "qkv_linear")
FUSED_KV = ("kv_b_proj", "to_kv", "kv_proj", "c_attn")
OUTPUT = (
    "o_proj",
    "out_proj",
    "c_proj",
    "dense",
    "out_lin",
    "o",
    "proj",
    "projection",
    "Wo",
    "output_proj",
    "projection_layer",
    "linear_out",
    "attention_out",
    "to_out",
    "post_proj",
    "wo",
    "linear_o",
    "output",
    "post",
    "output_projection",
)
# A projection may be wrapped: the matrix is this part of it.
WRAPPED = ("linear", "0")  # fmt: skip
# BERT's kin keep the output projection beside the attention module: `attention.self` and `attention.output`.
SIBLING_OUTPUT = ("output.dense", "output", "dense", "out_proj", "o_proj", "post")

# ------------------------------------------------------------------ names that numbers go by
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads", "nheads", "nhead")
KV_COUNTS = ("num_key_value_heads", "num_kv_heads", "kv_heads", "n_kv_heads")
GROUP_SIZES = ("num_key_value_groups", "n_rep", "num_kv_groups")
# A projection's input is split by the value width, which latent attention keeps apart from the key width.
HEAD_WIDTHS = ("v_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head",
               "dim_per_head", "d_head", "head_width")  # fmt: skip
QUERY_WIDTHS = ("all_head_size", "split_size", "inner_dim", "embed_dim", "hidden_size", "attn_dim", "dim",
                "all_head_dim", "query_size", "d_model", "q_size", "embed_size", "inner_size", "head_size",
                "hidden_size_output", "q_dim")  # fmt: skip
KV_WIDTHS = ("kv_dim", "kv_size", "k_dim", "v_dim")
CONFIG_HEAD_COUNTS = (*HEAD_COUNTS, "encoder_attention_heads", "decoder_attention_heads")
CONFIG_KV_COUNTS = ("num_key_value_heads", "num_kv_heads")
WINDOWS = ("sliding_window", "local_window_size", "window_size")
QUERY_NORMS = ("q_norm", "q_layernorm", "query_layernorm", "query_norm", "q_layer_norm", "norm_q", "q_ln")
KEY_NORMS = ("k_norm", "k_layernorm", "key_layernorm", "key_norm", "k_layer_norm", "norm_k", "k_ln")
# Norms that stand before or after the whole block: they never see single heads.
OUTER_NORMS = ("layer_norm", "LayerNorm", "layernorm", "layer_norm1", "layer_norm2", "pre_norm", "norm",
               "layernorm1", "layernorm2", "ln", "layer_norm_kv", "post_norm")  # fmt: skip
# Bias tables with one column per head, wherever in the module's reach they are.
TABLES = ("relative_position_bias_table", "relative_attention_bias")

# Parts that stand before the heads are told apart (latent attention) or belong to every head alike.
NOT_PER_HEAD = ("q_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "kv_a_layernorm", "per_dim_scale", "inv_freq",
                "relative_position_index", "rotary_emb", "rope", "rel_pos_emb", "distance_embedding", "dense_bias",
                "convolution_projection_query", "convolution_projection_key", "convolution_projection_value",
                # Rows of these are distances (SAM), never heads, however many there are of both.
                "rel_pos_h", "rel_pos_w",
                "indexer")  # fmt: skip
# Depthwise convolutions over keys or values, told by name where widths are equal; others run over the queries' width.
KV_CONVOLUTIONS = ("k_", "v_", "key", "value")
# Linear maps with some other number of outputs per query head.
PER_HEAD_LINEAR = ("r_proj",)

# ------------------------------------------------------------------ facts, by class of the attention module
# Fused rows come in groups [q … q, k, v] per key/value head instead of sections [Q | K | V].
GROUPED_ROWS = {
    "GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention", "FalconAttention", "FalconFlashAttention2",
    "GPTBigCodeAttention", "PersimmonAttention", "DisentangledSelfAttention",
}  # fmt: skip

# Forward arguments that carry one slice per head: (argument, axis). Where that axis holds batch*heads the
# replay notices by its length.
HEAD_ARGUMENTS: dict[str, tuple[tuple[str, int], ...]] = {
    "BloomAttention": (("alibi", 0),),
    "MptAttention": (("position_bias", 0),),
    "MPNetSelfAttention": (("position_bias", 1),),
    "FalconAttention": (("alibi", 1), ("attention_mask", 1)),
    "CpmAntAttention": (("position_bias", 1),),
    # Their rotary angles go by head instead of by place.
    "Xcodec2Attention": (("position_embeddings", 1),),
    "NeuCodecAttention": (("position_embeddings", 1),),
    "LayoutLMv3SelfAttention": (("position_bias", 1),),
    # Their models hand on masks that have been expanded to all heads.
    "EomtAttention": (("attention_mask", 1),),
    "EomtDinov3Attention": (("attention_mask", 1),),
    "Sam3Attention": (("attention_mask", 1),),
    "Sam3LiteTextAttention": (("attention_mask", 1),),
}

# The argument that brings BEiT's shared bias to a block: in later releases it is added to the mask before.
SHARED_BIAS = ("relative_position_bias", "attention_mask")

# The first block of a stack owns the bias table and hands the finished bias on: (argument, table).
HANDED_TABLES: dict[str, tuple[str, str]] = {
    "T5Attention": ("position_bias", "relative_attention_bias"),
    "MT5Attention": ("position_bias", "relative_attention_bias"),
    "SwitchTransformersAttention": ("position_bias", "relative_attention_bias"),
    "Pop2PianoAttention": ("position_bias", "relative_attention_bias"),
    "Pix2StructTextAttention": ("position_bias", "relative_attention_bias"),
    "LongT5Attention": ("position_bias", "relative_attention_bias"),
    "LongT5LocalAttention": ("position_bias", "relative_attention_bias"),
}

# What a module that owns this is, instead of attention: a state-space recurrence, whose `in_proj` is no fused q, k, v.
RECURRENT = ("A_log", "dt_bias")

# One module serves many layers: model type -> the config's count of calls.
SHARED_LAYERS = {"albert": "num_hidden_layers"}

# The projection's weight is read without calling the module, so a hook on it never fires.
NEVER_CALLED = {"MultiheadAttention", "WavLMAttention"}

# Attention that can be gated but not cut, each with the structural reason.
_RESHAPES = "its forward reshapes the context to the hidden size"
CUT_REFUSED = {
    **dict.fromkeys((
        "LongformerSelfAttention", "LEDEncoderSelfAttention", "LEDDecoderAttention", "TrOCRAttention",
        "ProphetNetAttention", "ProphetNetNgramSelfAttention", "PegasusXAttention", "PegasusXGlobalLocalAttention",
        "GroupViTAttention", "TimesformerSelfAttention", "MgpstrAttention", "BlipAttention", "Blip2Attention",
        "InstructBlipAttention", "InstructBlipVideoAttention", "PvtV2SelfAttention", "Florence2VisionWindowAttention",
        "fsmt.Attention", "TableTransformerAttention",
    ), _RESHAPES),
    # Releases before 5.6 read the width from the hidden states, into a variable of this name.
    "SiglipAttention:embed_dim": _RESHAPES,
    "CodeGenAttention": "its fused projection is split over four fixed partitions, not over heads",
    "WavLMAttention": "its position gate splits the hidden state into as many parts as there are heads",
    "ConvBertSelfAttention": "its convolutions share the projections of its heads",
    **dict.fromkeys(("BailingHybridDeltaAttention", "KimiLinearDeltaAttention", "Glm5NextTextLinearAttention"),
                    "it is a recurrence with convolutions over all heads"),
    "EfficientLoFTRAttention": "its rotary positions run over the width of all heads",
    "FunAsrNanoAttention": "a convolution over the values of all heads is added to its output",
    "LiltSelfAttention": "its two streams add up their scores, so heads go from both at once",
    "DiffLlamaAttention": "its heads work in pairs: half of them is subtracted from the other half",
    "DogeAttention": "its mask is computed from the values of all heads at once",
    "GroupViTAssignAttention": "it has one head",
    "DiTAttention": "only its first head has rotary positions",
    **dict.fromkeys(("MiniMaxLightningAttention", "DoryAttention"),
                    "a norm over the contexts of all heads stands before the output projection"),
    "UdopAttention": "its stack adds tables of its own to the bias that block 0 hands on",
    "ZayaCCAProjection": "its queries and keys are mixed by convolutions over all heads",
}  # fmt: skip

# Attention that a family of the tests' matrix covers: its cut is measured there, on these releases of transformers. Any
# other class, and every class on any other release, is rehearsed on a copy of one module before the first cut.
RELEASES = ("5.0.0", "5.24.0")
PROVEN = {
    "AlbertAttention", "BartAttention", "BeitAttention", "BeitSdpaSelfAttention", "BeitSelfAttention", "BertCrossAttention",
    "BertSelfAttention", "BigBirdSelfAttention", "BlenderbotAttention", "BloomAttention",
    "CLIPAttention", "CamembertSelfAttention", "Cohere2Attention", "CohereAttention", "DINOv3ViTAttention",
    "DeepseekV2Attention", "DeepseekV3Attention", "DeiTAttention", "DeiTSelfAttention", "Dinov2Attention",
    "Dinov2SelfAttention", "DisentangledSelfAttention", "DistilBertSelfAttention", "ElectraSelfAttention",
    "EsmSelfAttention", "FalconAttention", "GPT2Attention", "GPTBigCodeAttention", "GPTJAttention",
    "GPTNeoSelfAttention", "GPTNeoXAttention", "Gemma2Attention", "Gemma3Attention", "GemmaAttention",
    "GptOssAttention", "GraniteAttention", "HubertAttention", "LlamaAttention", "LongT5Attention",
    "LongT5LocalAttention", "M2M100Attention", "MBartAttention", "MPNetSelfAttention", "MT5Attention",
    "MarianAttention", "MistralAttention", "MixtralAttention", "ModernBertAttention", "MptAttention",
    "MultiheadAttention", "NomicBertAttention", "OPTAttention", "Olmo2Attention", "Olmo3Attention", "OlmoAttention",
    "OlmoeAttention", "PegasusAttention", "Phi3Attention", "PhiAttention", "Qwen2Attention", "Qwen2MoeAttention",
    "Qwen3Attention", "Qwen3MoeAttention", "RobertaSelfAttention", "SiglipAttention", "SmolLM3Attention",
    "StableLmAttention", "Starcoder2Attention", "SwinAttention", "SwinSelfAttention", "Swinv2SelfAttention",
    "T5Attention", "UMT5Attention", "ViTAttention", "ViTSelfAttention", "Wav2Vec2Attention", "WhisperAttention",
    "XLMRobertaSelfAttention", "XLNetRelativeAttention",
}  # fmt: skip
