"""Layer by layer: a block is shown what it is shown in the whole model, and nothing before it runs again."""

import copy

import pytest
import torch
from torch import nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates import gated
from headwise.analysis.gates.still import still
from headwise.analysis.sites import find_sites
from headwise.prune.compensation import in_order, layerwise
from headwise.prune.compensation.layerwise import layers_from
from headwise.prune.selection.blocks import blocks_of
from tests.models import build, cuttable, inputs_of

#: Stacks that run layer by layer, and those that do not: layers called twice, positions made anew in every pass.
STACKS = {
    "bert": (1, 0), "deberta-v2": (1, 0), "modernbert": (1, 0), "gpt2": (1, 0), "llama": (1, 0), "gemma3": (1, 0),
    "mixtral": (1, 0), "t5-deep": (2, 0), "bart": (2, 0), "whisper": (2, 0), "clip": (2, 0), "swin": (1, 0),
    "albert": (0, 0),
}  # fmt: skip


def shown(model, batches, gates, monkeypatch, alone):
    """What every block is shown, of the dense and of the gated model, and how many stacks ran layer by layer."""
    entered = []

    def watched(*args):
        entered.append(layers_from(*args) if alone else None)
        return entered[-1]

    monkeypatch.setattr(in_order, "layers_from", watched)
    dense, model, sites = copy.deepcopy(model), copy.deepcopy(model), find_sites(model)
    blocks, found = list(blocks_of(sites).values()), []
    with still(dense, model), torch.no_grad(), gated(model, gates):
        walk = in_order._Walk(dense, model, batches, blocks)
        for block in blocks:
            walk.reach(block)
            for _, *both in walk.seen(block, in_order.layer_of(model, block.sites[0], sites)):
                found += [tensor for calls in both for call in calls for tensor in call if tensor is not None]
    return found, entered


@pytest.mark.parametrize("name", STACKS)
def test_blocks_are_shown_what_the_whole_model_shows_them(name, monkeypatch):
    family = cuttable(name)
    model, inputs = build(family), inputs_of(family)
    batches = [Batch(inputs, [Text("a"), Text("b")], {})] * 2
    gates = {next(iter(blocks_of(find_sites(model)))): [0]}
    mine, entered = shown(model, batches, gates, monkeypatch, alone=True)
    whole, _ = shown(model, batches, gates, monkeypatch, alone=False)
    assert len(mine) == len(whole)
    for a, b in zip(mine, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))
    # The first stack is entered once for both models, which are still the same there.
    stacks, not_alone = STACKS[name]
    assert sum(found is not None for found in entered) == max(2 * stacks - 1, 0)
    assert sum(found is None for found in entered) == not_alone


def test_a_layer_runs_as_often_in_a_deep_model_as_in_a_shallow_one(monkeypatch):
    from transformers import BertConfig, BertModel

    runs = {}
    for depth in (3, 6):
        model = BertModel(BertConfig(num_hidden_layers=depth, num_attention_heads=2, hidden_size=8, vocab_size=20))
        counted = []
        for layer in model.encoder.layer:
            layer.attention.register_forward_hook(lambda *_, counted=counted: counted.append(1))
        batches = [Batch({"input_ids": torch.ones(1, 4, dtype=torch.long)}, [Text("a")], {})] * 5
        shown(model, batches, {"0": [0]}, monkeypatch, alone=True)
        runs[depth] = len(counted) / depth / len(batches)
    # A pass to see, one through, and one to the block, of two models; the rest is what the first batch is tried with.
    assert runs[6] < 6
    assert runs[6] - runs[3] < 0.5


def test_too_much_to_keep_is_not_kept(monkeypatch):
    family = cuttable("bert")
    model, batches = build(family), [Batch(inputs_of(family), [Text("a"), Text("b")], {})]
    with torch.no_grad():
        assert layers_from(model, ["bert.encoder.layer.0"], batches)
        monkeypatch.setattr(layerwise, "free_beside", lambda _: 1000)
        assert layers_from(model, ["bert.encoder.layer.0"], batches) is None


class Told(nn.Module):
    """A layer that is told something beside the stream."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, stream, told=None):
        return stream + self.linear(stream) + (0 if told is None else told)


class Writes(Told):
    """A layer that adds to the stream in place."""

    def forward(self, stream, told=None):
        return stream.add_(self.linear(stream))


class HandsOn(Told):
    """A layer whose first output is no stream."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, stream, told=None):
        return (*self.first, super().forward(stream))


class Stack(nn.Module):
    """Two layers; `way` says what is odd about them."""

    def __init__(self, way):
        super().__init__()
        kinds = {"writes": Writes, "nothing first": lambda: HandsOn([None]), "words first": lambda: HandsOn(["a"])}
        self.layers, self.way = nn.ModuleList([Told(), kinds.get(way, Told)()]), way

    def forward(self, stream):
        told = {"mean": stream.mean(), "fixed": torch.ones(4)}.get(self.way)
        for layer in reversed(self.layers) if self.way == "backwards" else self.layers:
            if self.way == "mean":
                told = stream.mean()
            given = layer(stream, told)
            stream = given[-1] if isinstance(given, tuple) else given
            if self.way == "between":
                stream = stream.tanh()
            if self.way == "twice":
                stream = layer(stream, told)
        return stream


@pytest.mark.parametrize(
    ("way", "alone"),
    [
        ("plain", True), ("fixed", True), ("mean", False), ("between", False), ("twice", False), ("backwards", False),
        ("writes", False), ("nothing first", False), ("words first", False),
    ],
)  # fmt: skip
def test_layers_that_do_not_run_alone_are_told(way, alone):
    torch.manual_seed(0)
    batches = [Batch({"stream": torch.randn(2, 3, 4)}, [Text("a"), Text("b")], {})]
    with torch.no_grad():
        assert (layers_from(Stack(way), ["layers.0", "layers.1"], batches) is not None) == alone


class Backwards(nn.Module):
    """Two encoders; the one that stands first runs last."""

    def __init__(self):
        from transformers import BertConfig, BertModel

        super().__init__()
        torch.manual_seed(0)
        small = BertConfig(
            num_hidden_layers=2, num_attention_heads=2, hidden_size=8, intermediate_size=8, vocab_size=20
        )
        self.last, self.first = BertModel(small).encoder, BertModel(small)

    def forward(self, input_ids):
        return self.last(self.first(input_ids).last_hidden_state)[0]


def test_a_stack_that_stands_first_and_runs_last_sees_what_went_before(monkeypatch):
    model = Backwards().eval()
    gates = {site.name: [0] for site in find_sites(model).values()}
    batches = [Batch({"input_ids": torch.arange(6).reshape(2, 3)}, [Text("a"), Text("b")], {})] * 2
    mine, entered = shown(model, batches, gates, monkeypatch, alone=True)
    whole, _ = shown(model, batches, gates, monkeypatch, alone=False)
    assert entered
    assert None not in entered
    torch.testing.assert_close(mine, whole)
