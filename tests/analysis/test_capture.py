from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartModel,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from headwise.analysis.capture import capture
from headwise.analysis.capture.kernels import kernels
from headwise.analysis.capture.maps import probabilities, rows_that_count
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.padding import right_padded
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.similarity import MEASURES
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.statistics import Statistics
from tests.models import build, cuttable

SIZE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 16,
    "vocab_size": 40,
}
GROUPED = SIZE | {"num_key_value_heads": 2, "max_position_embeddings": 64}
FAMILIES = {
    "bert": (BertForSequenceClassification, BertConfig(**SIZE)),
    "roberta": (RobertaModel, RobertaConfig(**SIZE, pad_token_id=1, max_position_embeddings=40)),
    "electra": (ElectraModel, ElectraConfig(**SIZE, embedding_size=16)),
    "distilbert": (
        DistilBertModel,
        DistilBertConfig(dim=16, n_layers=2, n_heads=4, hidden_dim=16, vocab_size=40),
    ),
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=40, n_positions=64)),
    "llama": (LlamaForCausalLM, LlamaConfig(**GROUPED)),
    "mistral": (MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=4, head_dim=4)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=4)),
}


def model_of(family, kernel="sdpa", dtype=torch.float32):
    kind, config = FAMILIES[family]
    torch.manual_seed(0)
    config._attn_implementation = kernel
    model = kind(config)
    for parameter in model.parameters():
        # Large weights, so that heads differ from the uniform one.
        torch.nn.init.normal_(parameter, std=0.4) if parameter.dim() > 1 else None
    return model.to(dtype).eval()


def batch_of(rows, left=False, width=None, texts=None, decoder=False):
    width = width or max(len(row) for row in rows)
    ids = torch.full((len(rows), width), 1)
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row)
        valid[i, place] = True
    nothing = torch.zeros_like(valid)
    tokens = Tokens(ids, valid, nothing, torch.full_like(ids, -1), torch.zeros(*ids.shape, 2, dtype=torch.long))
    inputs = {"input_ids": ids, "attention_mask": valid.long()}
    streams = {"": tokens}
    if decoder:
        inputs |= {"decoder_input_ids": ids[:, :-2], "decoder_attention_mask": valid[:, :-2].long()}
        streams["decoder"] = Tokens(ids[:, :-2], valid[:, :-2], nothing[:, :-2], ids[:, :-2], tokens.offsets[:, :-2])
    return Batch(inputs, [Text(str(row)) for row in rows] if texts is None else texts, streams)


ROWS = [list(np.random.default_rng(i).integers(4, 40, size=n)) for i, n in enumerate((12, 5, 9, 3))]


class Keep:
    needs = frozenset({"maps", "contexts"})

    def __init__(self):
        self.seen = []

    def update(self, batch, seen):
        self.seen.append(seen)

    def result(self):
        return {}


class Raises(Keep):
    def update(self, batch, seen):
        raise ZeroDivisionError


def state_of(model):
    hooks = {
        name: [list(getattr(module, kind)) for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
        for name, module in model.named_modules()
    }
    modes = [module.training for module in model.modules()]
    grads = [(parameter.requires_grad, parameter.grad is None) for parameter in model.parameters()]
    return hooks, modes, grads, kernels(model)


@pytest.mark.parametrize("raising", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_looking_changes_nothing(family, kernel, dtype, raising):
    model = model_of(family, kernel, dtype)
    batch = batch_of(ROWS)
    with torch.no_grad():
        before = model(**batch.inputs)[0]
    mixed = list(model.modules())[1]
    mixed.training = True
    next(model.parameters()).requires_grad_(False)
    state = state_of(model)
    with pytest.raises(ZeroDivisionError) if raising else nullcontext():
        capture(model, [batch], [Raises() if raising else Keep()])
    assert state_of(model) == state
    assert set(kernels(model).values()) == {kernel}
    mixed.training = False
    with torch.no_grad():
        assert torch.equal(model(**batch.inputs)[0], before)


@pytest.mark.parametrize("family", ["deberta", "deberta-v2", "mpnet"])
def test_modules_that_hand_out_maps_only_where_told_to_are_told_to(family):
    model = build(cuttable(family))
    keep, batch = Keep(), batch_of(ROWS)
    state = state_of(model)
    capture(model, [batch], [keep])
    assert state_of(model) == state
    with torch.no_grad():
        expected = model(**batch.inputs, output_attentions=True).attentions
    assert all(torch.equal(one.maps, wanted) for one, wanted in zip(keep.seen[0].values(), expected, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_are_what_the_model_uses(family):
    model = model_of(family)
    keep = Keep()
    batch = batch_of(ROWS)
    went = capture(model, [batch, batch], [keep])
    assert (went.texts, went.batches, went.rows, went.excluded) == (8, 2, 2 * sum(map(len, ROWS)), {})
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch.inputs, output_attentions=True).attentions
    for (name, one), wanted in zip(keep.seen[1].items(), expected, strict=True):
        assert one.site.name == name
        assert torch.equal(one.maps, wanted)
        assert torch.equal(one.queries, batch.tokens[""].valid)
        assert (one.maps.transpose(1, 2)[one.queries].sum(-1) - 1).abs().max() < 1e-5
        causal = family in ("gpt2", "llama", "mistral", "qwen3")
        rule = torch.ones(12, 12, dtype=torch.bool).tril() if causal else torch.ones(12, 12, dtype=torch.bool)
        if family == "mistral":
            rule = rule.triu(-3)
        valid = batch.tokens[""].valid
        assert torch.equal(one.allowed, valid[:, :, None] & valid[:, None] & rule)
        projection = model.get_submodule(one.site.output)
        weight = projection.weight if hasattr(projection, "nf") else projection.weight.T
        assert one.contexts.flatten(2).shape[-1] == weight.shape[0]


def everything(family, batches):
    model = model_of(family)
    sites = find_sites(model)
    reducers = [Statistics(sites), *(measure(sites) for measure in MEASURES.values())]
    capture(model, batches, reducers)
    return {name: array for reducer in reducers for name, array in reducer.result().items()}


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "gpt2", "llama", "mistral"])
def test_padding_side_amount_company_and_order_do_not_matter(family):
    together = everything(family, [batch_of(ROWS)])
    for batches in (
        [batch_of(ROWS, left=True)],
        [batch_of(ROWS, width=17)],
        [batch_of(ROWS[:1]), batch_of(ROWS[2:], left=True, width=20), batch_of(ROWS[1:2])],
        [batch_of([row]) for row in reversed(ROWS)],
    ):
        other = everything(family, batches)
        for name, array in together.items():
            np.testing.assert_allclose(other[name], array, atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "modernbert"])
def test_allowed_keys_are_those_that_a_softmax_reached(family):
    if family == "modernbert":
        # The window reaches three tokens to either side; the module calls that 4.
        size = ModernBertConfig(
            **SIZE, max_position_embeddings=64, global_attn_every_n_layers=2, local_attention=6, pad_token_id=1
        )
        torch.manual_seed(0)
        model = ModernBertModel(size).eval()
    else:
        model = model_of(family)
    keep = Keep()
    capture(model, [batch_of(ROWS)], [keep])
    for one in keep.seen[0].values():
        assert torch.equal(one.allowed, (one.map > 0).all(1) & one.queries[..., None])


def test_contexts_alone_leave_the_kernel_alone():
    class Contexts(Keep):
        needs = frozenset({"contexts"})

        def update(self, batch, seen):
            self.kernel = model.config._attn_implementation
            assert all(one.maps is None for one in seen.values())
            with pytest.raises(BadInput, match="no maps were captured"):
                _ = next(iter(seen.values())).map

    model, reducer = model_of("gpt2"), Contexts()
    capture(model, [batch_of(ROWS)], [reducer])
    assert reducer.kernel == "sdpa"


def test_shared_layers_are_told_apart():
    model = AlbertModel(AlbertConfig(**SIZE, embedding_size=8)).eval()
    keep, batch = Keep(), batch_of(ROWS)
    capture(model, [batch], [keep])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch.inputs, output_attentions=True).attentions
    assert list(keep.seen[0]) == ["0", "1"]
    for one, wanted in zip(keep.seen[0].values(), expected, strict=True):
        assert torch.equal(one.maps, wanted)
    assert not torch.equal(expected[0], expected[1])


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]])
def test_t5_weights_are_taken_not_the_bias(rows):
    torch.manual_seed(0)
    config = T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=4)
    model, keep = T5Model(config).eval(), Keep()
    capture(model, [batch_of(rows, decoder=True, width=14)], [keep])
    for name, one in keep.seen[0].items():
        assert (one.maps.transpose(1, 2)[one.queries].sum(-1) - 1).abs().max() < 1e-5
        kind = name.rpartition(".")[0]
        shapes = {"encoder.self": (14, 14), "decoder.self": (12, 12), "decoder.cross": (12, 14)}
        assert one.maps.shape[2:] == shapes[kind]


def test_an_encoder_decoder_has_its_three_kinds_apart():
    config = BartConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    model, keep = BartModel(config).eval(), Keep()
    sites = find_sites(model)
    measured = MEASURES["pearson"](sites)
    capture(model, [batch_of(ROWS[:1] * 2, decoder=True)], [keep, measured, Statistics(sites)])
    shapes = {name: tuple(one.maps.shape[2:]) for name, one in keep.seen[0].items()}
    assert shapes == {"encoder.self.0": (12, 12), "decoder.self.0": (10, 10), "decoder.cross.0": (10, 12)}
    r = measured.result()["similarity/pearson"].reshape(3, 4, 3, 4)
    for i in range(3):
        for j in range(3):
            assert np.isnan(r[i, :, j]).all() == (i != j)


def test_sinks_take_mass_and_are_reported():
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, intermediate_size=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model, keep = GptOssForCausalLM(config).eval(), Keep()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    statistics = Statistics(find_sites(model))
    went = capture(model, [batch_of(ROWS)], [keep, statistics])
    assert set(went.missing) == set(keep.seen[0])
    assert all(0.05 < missing < 0.9 for missing in went.missing.values())
    missing = statistics.result()["statistics/missing_mass"].reshape(2, 4).mean(1)
    np.testing.assert_allclose(missing, list(went.missing.values()), rtol=1e-5)


class Scripted(torch.nn.Module):
    """An attention block that returns what it is told to."""

    def __init__(self, output, calls=1, causal=False):
        super().__init__()
        self.block = torch.nn.Module()
        self.block.forward = lambda: output
        self.block.is_causal = causal
        self.calls = calls

    def forward(self, **_):
        for _ in range(self.calls):
            self.block()


def look_at(output, batch=None, **kwargs):
    class Maps(Keep):
        needs = frozenset({"maps"})

    heads = kwargs.pop("heads", 2)
    site = Site("7", "block", "block", heads=heads, kv_heads=heads, head_dim=1, kept=tuple(range(heads)),
                window=kwargs.pop("window", None))  # fmt: skip
    keep = Maps()
    went = capture(Scripted(output, **kwargs), [batch or batch_of([[1, 2, 3]])], [keep], sites={"7": site})
    return keep.seen[0]["7"], went


def even(batch=1, heads=2, length=3):
    return torch.full((batch, heads, length, length), 1 / length)


def test_wrong_tensors_are_refused_by_name():
    with pytest.raises(BadInput, match=r"site 7: no attention map.*attn_implementation='eager'"):
        look_at((None, None))
    with pytest.raises(BadInput, match="site 7: no attention map"):
        look_at((None, torch.randn(1, 2, 3, 3)))
    with pytest.raises(BadInput, match=r"site 7: no attention map.*\(1, 3, 3, 3\).*\[1, 2, query, key\]"):
        look_at((None, even(heads=3)))
    with pytest.raises(BadInput, match=r"sum to 0\.5"):
        look_at((None, even() / 2))
    assert look_at((even() * -30, even() * 3, even()))[0].maps.sum() == pytest.approx(6)


def test_a_lost_mask_is_noticed():
    with pytest.raises(BadInput, match="site 7: attention to later tokens"):
        look_at((None, even()), causal=True)
    with pytest.raises(BadInput, match="site 7: attention to padding"):
        look_at((None, even()), batch_of([[1, 2]], width=3))
    with pytest.raises(BadInput, match="declared window of 1"):
        look_at((None, even().tril() / even().tril().sum(-1, keepdim=True)), causal=True, window=1)
    causal = even().tril() / even().tril().sum(-1, keepdim=True)
    assert look_at((None, causal), causal=True)[0].allowed.sum() == 6


def test_hooks_that_do_not_fire_are_counted():
    for calls in (0, 2):
        with pytest.raises(BadInput, match=rf"site 7: the hook on block fired {calls} times.*expected 1"):
            look_at((None, even()), calls=calls)


def test_broken_rows_are_left_out_and_counted():
    maps = even(batch=2)
    maps[0, 1, 2] = torch.nan
    maps[1, 0, 0] = 0
    one, went = look_at((None, maps), batch_of([[1, 2, 3], [4, 5, 6]]))
    assert went.excluded == {"7": 2}
    assert one.queries.tolist() == [[True, True, False], [False, True, True]]
    assert one.maps.isfinite().all()
    assert not one.allowed[0, 2].any()
    statistics = Statistics({"7": one.site})
    seen = {"7": Seen(one.site, one.maps, torch.ones(2, 3, 2, 1), one.queries, one.allowed)}
    statistics.update(batch_of([[1, 2, 3], [4, 5, 6]]), seen)
    np.testing.assert_allclose(statistics.result()["statistics/entropy"], np.log(3), rtol=1e-6)
    assert statistics.result()["statistics/rows"].tolist() == [4, 4]


def test_nan_in_padding_rows_does_not_spread():
    maps = even(length=2)
    maps = torch.nn.functional.pad(maps, (0, 1, 0, 1), value=0.0)
    maps[:, :, 2] = torch.nan
    one, went = look_at((None, maps), batch_of([[1, 2]], width=3))
    assert went.excluded == {}
    assert one.maps.isfinite().all()
    assert rows_that_count({"7": one})[1] == {}


def test_right_padding_moves_everything_along():
    batch = batch_of(ROWS, left=True)
    moved = right_padded(batch)
    straight = batch_of(ROWS)
    assert right_padded(straight) is straight
    for name, value in straight.inputs.items():
        assert torch.equal(moved.inputs[name], value)
    assert torch.equal(moved.tokens[""].ids, straight.tokens[""].ids)
    bare = Batch({"input_ids": batch.inputs["input_ids"]}, batch.texts, batch.tokens)
    assert torch.equal(right_padded(bare).inputs["attention_mask"], straight.inputs["attention_mask"])


def test_maps_that_a_training_step_left_are_looked_at_without_a_warning(recwarn):
    maps = torch.full((1, 1, 2, 2), 0.5, requires_grad=True)
    found, at = probabilities(Site("0", "attn", "attn.o", heads=1, kv_heads=1, head_dim=1), (None, maps), 1, 1)
    assert (found.requires_grad, at, list(recwarn)) == (True, 1, [])


def test_maps_of_nothing_but_nan_are_told_from_no_maps():
    site, maps = Site("0", "attn", "attn.o", heads=1, kv_heads=1, head_dim=1), torch.full((2, 1, 2, 2), torch.nan)
    with pytest.raises(BadInput, match=r"nothing but NaN.*float16.*--dtype"):
        probabilities(site, (None, maps.half()), 2, 1)
    # One text of numbers is enough; the other's rows are left out later.
    maps[0] = 0.5
    assert probabilities(site, (None, maps), 2, 1)[1] == 1
