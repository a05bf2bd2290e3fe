"""The attention families that the tests cover. Written by `python -m tests.supported`."""

from __future__ import annotations

from typing import NamedTuple


class Supported(NamedTuple):
    """One family.

    Attributes:
        family: how people call it.
        config: its configuration class.
        cut: why it cannot be cut, or ``.
        generates: whether generation is compared, too.
        native: whether equal numbers of heads have a native form.
    """

    family: str
    config: str
    cut: str
    generates: bool
    native: bool


SUPPORTED = (
    Supported("bert", "BertConfig", "", False, False),
    Supported("roberta", "RobertaConfig", "", False, False),
    Supported("xlm-r", "XLMRobertaConfig", "", False, False),
    Supported("camembert", "CamembertConfig", "", False, False),
    Supported("electra", "ElectraConfig", "", False, False),
    Supported("esm", "EsmConfig", "", False, False),
    Supported("distilbert", "DistilBertConfig", "", False, False),
    Supported("albert", "AlbertConfig", "", False, False),
    Supported("deberta", "DebertaConfig", "", False, False),
    Supported("deberta-v2", "DebertaV2Config", "", False, False),
    Supported("deberta-v2-own", "DebertaV2Config", "", False, False),
    Supported("mpnet", "MPNetConfig", "", False, False),
    Supported("modernbert", "ModernBertConfig", "", False, False),
    Supported("nomic-bert", "NomicBertConfig", "", False, True),
    Supported("xlnet", "XLNetConfig", "", False, False),
    Supported("longformer", "LongformerConfig", "reshapes the context to the hidden size", False, False),
    Supported("big-bird", "BigBirdConfig", "", False, False),
    Supported("gpt2", "GPT2Config", "", True, False),
    Supported("gpt2-cross", "GPT2Config", "", False, False),
    Supported("gpt-neo", "GPTNeoConfig", "", True, False),
    Supported("gpt-neox", "GPTNeoXConfig", "", True, False),
    Supported("gptj", "GPTJConfig", "", True, False),
    Supported("gpt-bigcode", "GPTBigCodeConfig", "", True, False),
    Supported("gpt-bigcode-mha", "GPTBigCodeConfig", "", True, False),
    Supported("codegen", "CodeGenConfig", "four fixed partitions", True, False),
    Supported("opt", "OPTConfig", "", True, False),
    Supported("bloom", "BloomConfig", "", True, False),
    Supported("falcon", "FalconConfig", "", True, False),
    Supported("falcon-mq", "FalconConfig", "", True, False),
    Supported("falcon-alibi", "FalconConfig", "", True, False),
    Supported("mpt", "MptConfig", "", True, False),
    Supported("phi", "PhiConfig", "", True, True),
    Supported("stablelm-qknorm", "StableLmConfig", "", True, False),
    Supported("cohere-qknorm", "CohereConfig", "", True, True),
    Supported("gemma", "GemmaConfig", "", True, True),
    Supported("llama-wide", "LlamaConfig", "", True, True),
    Supported("llama-full", "LlamaConfig", "", True, False),
    Supported("mixtral", "MixtralConfig", "", True, True),
    Supported("qwen2-moe", "Qwen2MoeConfig", "", True, True),
    Supported("qwen3-moe", "Qwen3MoeConfig", "", True, True),
    Supported("olmoe", "OlmoeConfig", "", True, False),
    Supported("gpt-oss", "GptOssConfig", "", True, True),
    Supported("deepseek-v2", "DeepseekV2Config", "", True, False),
    Supported("deepseek-v3", "DeepseekV3Config", "", True, True),
    Supported("llama", "LlamaConfig", "", True, True),
    Supported("mistral", "MistralConfig", "", True, True),
    Supported("qwen2", "Qwen2Config", "", True, True),
    Supported("qwen3", "Qwen3Config", "", True, True),
    Supported("gemma2", "Gemma2Config", "", True, True),
    Supported("gemma3", "Gemma3TextConfig", "", True, True),
    Supported("olmo", "OlmoConfig", "", True, True),
    Supported("olmo2", "Olmo2Config", "", True, False),
    Supported("olmo3", "Olmo3Config", "", True, False),
    Supported("granite", "GraniteConfig", "", True, True),
    Supported("smollm3", "SmolLM3Config", "", True, True),
    Supported("cohere", "CohereConfig", "", True, True),
    Supported("cohere2", "Cohere2Config", "", True, True),
    Supported("starcoder2", "Starcoder2Config", "", True, True),
    Supported("phi3", "Phi3Config", "", True, True),
    Supported("stablelm", "StableLmConfig", "", True, False),
    Supported("bart", "BartConfig", "", True, False),
    Supported("mbart", "MBartConfig", "", True, False),
    Supported("marian", "MarianConfig", "", True, False),
    Supported("pegasus", "PegasusConfig", "", True, False),
    Supported("m2m100", "M2M100Config", "", True, False),
    Supported("blenderbot", "BlenderbotConfig", "", True, False),
    Supported("t5", "T5Config", "", True, True),
    Supported("mt5", "MT5Config", "", True, True),
    Supported("umt5", "UMT5Config", "", True, True),
    Supported("t5-deep", "T5Config", "", True, True),
    Supported("flan-t5", "T5Config", "", True, True),
    Supported("led", "LEDConfig", "reshapes the context to the hidden size", False, False),
    Supported("longt5", "LongT5Config", "", True, True),
    Supported("whisper", "WhisperConfig", "", True, False),
    Supported("encoder-decoder", "EncoderDecoderConfig", "", False, False),
    Supported("vit", "ViTConfig", "", False, True),
    Supported("deit", "DeiTConfig", "", False, True),
    Supported("dinov2", "Dinov2Config", "", False, True),
    Supported("dinov3", "DINOv3ViTConfig", "", False, False),
    Supported("beit", "BeitConfig", "", False, True),
    Supported("beit-shared", "BeitConfig", "", False, False),
    Supported("swin", "SwinConfig", "", False, False),
    Supported("swinv2", "Swinv2Config", "", False, False),
    Supported("clip-vision", "CLIPVisionConfig", "", False, False),
    Supported("clip-text", "CLIPTextConfig", "", False, False),
    Supported("clip", "CLIPConfig", "", False, False),
    Supported("siglip", "SiglipConfig", "", False, False),
    Supported("siglip-vision", "SiglipVisionConfig", "", False, False),
    Supported("blip", "BlipConfig", "reshapes the context to the hidden size", False, False),
    Supported("llava", "LlavaConfig", "", False, False),
    Supported("wav2vec2", "Wav2Vec2Config", "", False, False),
    Supported("hubert", "HubertConfig", "", False, False),
    Supported("wavlm", "WavLMConfig", "position gate", False, False),
)
