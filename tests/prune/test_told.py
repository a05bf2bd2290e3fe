"""What models and layers are told: no cache, one rule for all passes; and which of it is the stream."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates.still import still
from headwise.analysis.gates.uncached import uncached
from headwise.analysis.sites import find_sites
from headwise.prune.compensation.in_order import _watched
from headwise.prune.compensation.layerwise import Reached, layers_from, stream_into
from headwise.prune.export import _Reads
from headwise.prune.selection.blocks import blocks_of
from headwise.prune.speed.attention import attention_speed

IDS = {"input_ids": torch.ones(2, 6, dtype=torch.long), "attention_mask": torch.ones(2, 6, dtype=torch.long)}


def language(kind):
    torch.manual_seed(0)
    if kind.startswith("GPT2"):
        return getattr(transformers, kind)(
            transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=30, n_positions=16, pad_token_id=0)
        ).eval()
    return getattr(transformers, kind)(
        transformers.LlamaConfig(
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, hidden_size=16, intermediate_size=16,
            vocab_size=30, pad_token_id=0,
        )
    ).eval()  # fmt: skip


KINDS = ["GPT2LMHeadModel", "GPT2ForQuestionAnswering", "LlamaForCausalLM", "LlamaForQuestionAnswering"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_pass_leaves_a_cache(kind):
    model, kept = language(kind), []
    doors = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    for door in doors:
        door.register_forward_pre_hook(
            lambda _module, args, named: kept.extend(
                value for value in (*args, *named.values()) if isinstance(value, transformers.Cache)
            ),
            with_kwargs=True,
        )
    with torch.no_grad():
        model(**IDS)
        assert kept, "by itself it keeps one"
        kept.clear()
        model(**IDS, **uncached(model))
        _Reads(model)(**IDS)
    assert not kept


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_any_head_on_a_language_model_run_alone(kind):
    model = language(kind)
    trunk = "transformer.h" if kind.startswith("GPT2") else "model.layers"
    if kind == "LlamaForQuestionAnswering":
        trunk = "transformer.layers"
    with torch.no_grad(), still(model):
        found = layers_from(model, [f"{trunk}.0", f"{trunk}.1"], [Batch(IDS, [Text("a"), Text("b")], {})])
    assert found is not None


class Plain(nn.Module):
    """A model whose configuration speaks of a cache, and whose forward knows no such word."""

    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=30)
        self.config, self.inner = SimpleNamespace(use_cache=True), transformers.BertModel(config)

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


def test_a_forward_that_knows_no_cache_is_told_of_none():
    model = Plain().eval()
    assert uncached(model) == {}
    with torch.inference_mode():
        assert attention_speed(model, model, IDS, rounds=1) is not None
        assert _Reads(model)(**IDS).shape[:2] == (2, 6)


class Places(nn.Module):
    """A layer that is told where tokens stand before what they are."""

    def __init__(self):
        super().__init__()
        from transformers.models.bert.modeling_bert import BertAttention

        config = transformers.BertConfig(hidden_size=8, num_attention_heads=2)
        config._attn_implementation = "eager"
        self.attention = BertAttention(config)

    def forward(self, places, stream):
        return self.attention(stream)[0]


def test_the_stream_is_the_first_floating_tensor_wherever_it_is_looked_for():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Places(), Places()])

        def forward(self, stream):
            for layer in self.layers:
                stream = layer(torch.arange(3), stream)
            return stream

    model, stream = Stack().eval(), torch.randn(1, 3, 8)
    block = blocks_of(find_sites(model))["1"]
    with torch.no_grad():
        entered = model.layers[0](torch.arange(3), stream)
        with pytest.raises(Reached), _watched(model, block, "layers.1") as seen:
            model(stream)
    assert torch.equal(seen[0][1], entered)
    assert stream_into((torch.arange(3), stream), {}) == (1, stream)
    assert stream_into((torch.arange(3),), {"mask": None}) is None
