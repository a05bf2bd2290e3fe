"""Sites: names that people can use, and clear words about models that have none."""

import pytest
import torch
import transformers
from torch import nn

from headwise.analysis.errors import BadInput, UnknownModel
from headwise.analysis.sites import find_sites, heads_of
from headwise.analysis.sites.places import places
from tests.families import FAMILIES
from tests.models import build

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}


@pytest.mark.parametrize(("paths", "names"), [
    (["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"], [("", "self", 0), ("", "self", 1)]),
    (["encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"],
     [("encoder", "self", 0), ("decoder", "cross", 0)]),
    (["vision_model.encoder.layers.0.self_attn", "vision_model.head.attention"], [("", "self", 0), ("", "pool", 0)]),
    (["model.visual.blocks.3.attn", "model.language_model.layers.5.self_attn"],
     [("vision", "self", 3), ("text", "self", 5)]),
    (["encoder.encoder.layer.0.attention.self", "decoder.bert.encoder.layer.0.attention.self"],
     [("encoder", "self", 0), ("decoder", "self", 0)]),
])  # fmt: skip
def test_places_speak_of_stacks_and_depths(paths, names):
    assert places(paths) == names


def test_heads_are_listed_in_the_order_of_the_sites():
    sites = find_sites(build(FAMILIES["bart"]))
    assert heads_of(sites)[:5] == [("encoder.self.0", h) for h in range(4)] + [("encoder.self.1", 0)]
    assert len(heads_of(sites)) == sum(site.heads for site in sites.values())


def test_a_key_value_head_serves_a_group():
    site = find_sites(build(FAMILIES["llama"]))["0"]
    assert [site.group(head) for head in range(4)] == [0, 0, 1, 1]


def test_windows_are_read_where_they_are_declared():
    windows = {name: site.window for name, site in find_sites(build(FAMILIES["gemma3"])).items()}
    assert set(windows.values()) <= {None, 4}
    assert 4 in windows.values()


def test_sites_are_found_without_weights():
    config = transformers.LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)
    with torch.device("meta"):
        assert list(find_sites(transformers.LlamaModel(config))) == ["0", "1"]


# ------------------------------------------------------------------------------------------------ none
def without_attention():
    yield transformers.FNetModel(transformers.FNetConfig(**SIZES))
    yield transformers.MambaModel(transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50))
    yield transformers.RwkvModel(transformers.RwkvConfig(hidden_size=32, attention_hidden_size=32, num_hidden_layers=2,
                                                         vocab_size=50))  # fmt: skip
    yield transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))


@pytest.mark.parametrize("model", without_attention(), ids=lambda model: type(model).__name__)
def test_a_model_without_attention_is_told_so(model):
    with pytest.raises(UnknownModel, match="no attention site was understood") as raised:
        find_sites(model)
    assert raised.value.exit_code == 2


def test_recurrences_are_no_attention():
    config = transformers.JambaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, attn_layer_period=2,
                                      attn_layer_offset=1, num_experts=1, num_experts_per_tok=1, use_mamba_kernels=False)  # fmt: skip
    assert [site.module for site in find_sites(transformers.JambaModel(config)).values()] == ["layers.1.self_attn"]


def test_attention_of_an_unknown_shape_is_listed():
    class OddAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.blend = nn.Linear(8, 8)

    class Remote(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([OddAttention()])

    with pytest.raises(UnknownModel, match=r"layers\.0 \(OddAttention: blend\)"):
        find_sites(Remote())


# ------------------------------------------------------------------------------------------------ not as they were
def test_quantised_projections_are_refused_with_what_to_do():
    quantize = getattr(torch.ao.quantization, "quantize_dynamic", None)
    if quantize is None:
        pytest.skip("this torch has no dynamic quantisation")
    model = quantize(build(FAMILIES["bert"]), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(BadInput, match=r"is quantised \(Linear\).*dequantise first"):
        find_sites(model)


def test_four_bit_projections_are_refused():
    class Linear4bit(nn.Linear):
        """As bitsandbytes calls its own."""

    model = build(FAMILIES["llama"])
    model.model.layers[0].self_attn.q_proj = Linear4bit(32, 32)
    with pytest.raises(BadInput, match="quantised"):
        find_sites(model)


def test_adapters_are_refused_with_what_to_do():
    class Wrapped(nn.Module):
        """As peft wraps a projection."""

        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.lora_A = nn.ModuleDict({"default": nn.Linear(32, 2)})

        @property
        def weight(self):
            return self.base_layer.weight

    model = build(FAMILIES["llama"])
    attention = model.model.layers[0].self_attn
    attention.q_proj = Wrapped(attention.q_proj)
    with pytest.raises(BadInput, match=r"merge_and_unload"):
        find_sites(model)


def test_a_dense_model_from_a_cut_configuration_is_told_apart():
    from headwise.prune.surgery import cut

    config = cut(build(FAMILIES["bert"]), {"0": [1]}).config
    with pytest.raises(BadInput, match=r"delete `config\.headwise`"):
        find_sites(transformers.BertModel(config))
