import copy
import gc
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune import cut
from headwise.prune.report.doubt import doubt
from headwise.prune.speed import compare_speed, drift_of
from headwise.prune.speed.attention import block_of
from headwise.prune.speed.clock import EventClock
from headwise.prune.speed.generation import generates
from headwise.prune.speed.inputs import fitting, inputs_to_time
from headwise.prune.speed.operations import operations, parameters, size_in_bytes
from headwise.prune.speed.peak_memory import peak_memory
from headwise.prune.speed.timing import Times, row_of
from tests.prune.tiny_tasks import make

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip


class Clock:
    """Time that passes only where a model says so, and at a pace that may change."""

    def __init__(self, pace=lambda now: 1.0):
        self.now, self.pace = 0.0, pace

    def __call__(self):
        return self.now


class Timed(nn.Module):
    """A model whose call takes the seconds that a generator gives, on a made-up clock."""

    def __init__(self, clock, seconds, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.clock, self.seconds = clock, iter(seconds)
        self.calls = 0

    def forward(self, x):
        self.clock.now += next(self.seconds) * self.clock.pace(self.clock.now)
        self.calls += 1
        assert not self.training
        assert torch.is_inference_mode_enabled()
        return self.linear(x)


def jitter(base, spread=0.02, seed=0):
    draw = np.random.default_rng(seed)
    return (base * (1 + spread * draw.standard_normal()) for _ in itertools.count())


def timed(dense, cut, pace=lambda now: 1.0, **options):
    clock = Clock(pace)
    models = Timed(clock, dense), Timed(clock, cut)
    found = compare_speed(*models, lambda b, n: {"x": torch.ones(b, n, 4)}, clock=clock, **options)
    return found, models, clock


# --- operations, parameters, bytes


def by_hand(batch, length, heads, layers=2, width=16, head_dim=4, wide=24):
    """Operations of BERT without its pooler's pass over one token."""
    inner = heads * head_dim
    projections = 2 * batch * length * width * inner * 4
    attention = 2 * batch * heads * length * length * head_dim * 2
    forward = 2 * batch * length * width * wide * 2
    return layers * (projections + attention + forward) + 2 * batch * width * width


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_operations_are_those_on_paper_under_any_kernel(kernel):
    model = make(BertModel, BertConfig, **SMALL, attn_implementation=kernel)
    for batch, length in ((1, 8), (3, 20)):
        found = operations(model, inputs_to_time(model, batch, length))
        assert found == by_hand(batch, length, heads=4)


def test_grouped_queries_are_counted_by_their_query_heads():
    # More query than key heads is what torch's own count of fused attention refuses.
    options = {**SMALL, "num_key_value_heads": 2, "head_dim": 4}
    counts = [
        operations(model, inputs_to_time(model, 2, 10))
        for kernel in ("eager", "sdpa")
        for model in [make(LlamaForCausalLM, LlamaConfig, **options, attn_implementation=kernel)]
    ]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_tied_parameters_count_once():
    model = make(LlamaForCausalLM, LlamaConfig, **SMALL, tie_word_embeddings=True)
    apart = make(LlamaForCausalLM, LlamaConfig, **SMALL, tie_word_embeddings=False)
    assert parameters(apart) - parameters(model) == 40 * 16
    assert size_in_bytes(apart) - size_in_bytes(model) == 40 * 16 * 4
    assert size_in_bytes(copy.deepcopy(model).bfloat16()) < 0.6 * size_in_bytes(model)


# --- inputs


FAMILIES = {
    "bert": (BertModel, BertConfig, SMALL),
    "roberta": (RobertaModel, RobertaConfig, {**SMALL, "pad_token_id": 1}),
    "gpt2": (GPT2ForSequenceClassification, GPT2Config, {
        "vocab_size": 40, "n_embd": 16, "n_head": 4, "n_layer": 1, "n_positions": 32}),
    "llama": (LlamaForCausalLM, LlamaConfig, SMALL),
    "bart": (BartForSequenceClassification, BartConfig, {
        "vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}),
    "t5": (T5ForConditionalGeneration, T5Config, {
        "vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 8, "num_heads": 2, "num_layers": 1,
        "decoder_start_token_id": 0}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_can_be_timed_from_its_config(family):
    kind, config, options = FAMILIES[family]
    dense = make(kind, config, **options)
    found = compare_speed(dense, copy.deepcopy(dense), batches=(2,), lengths=(8,), rounds=2)
    json.dumps(found, allow_nan=False)
    row = found["rows"][0]
    assert (row["batch"], row["length"], row["operation_ratio"], row["rounds"]) == (2, 8, 1.0, 2)
    assert row["dense_ms"]["low"] <= row["dense_ms"]["median"] <= row["dense_ms"]["high"]
    assert found["kernel"] == "sdpa"
    assert dense.config.pad_token_id == copy.deepcopy(dense).config.pad_token_id


def test_made_up_ids_are_ordinary_and_seeded():
    model = make(RobertaModel, RobertaConfig, **SMALL, pad_token_id=1, bos_token_id=2, eos_token_id=3)
    ids = inputs_to_time(model, 8, 30, seed=1)["input_ids"]
    assert not set(ids.unique().tolist()) & {0, 1, 2, 3}
    assert torch.equal(ids, inputs_to_time(model, 8, 30, seed=1)["input_ids"])
    assert not torch.equal(ids, inputs_to_time(model, 8, 30, seed=2)["input_ids"])
    with pytest.raises(BadInput, match="pass make_inputs"):
        inputs_to_time(nn.Linear(2, 2), 1, 1)


def test_lengths_beyond_the_models_positions_are_left_out_and_named():
    model = make(BertModel, BertConfig, **SMALL)
    assert fitting(model, (8, 32, 33)) == ((8, 32), (33,))
    assert fitting(model, (64, 128)) == ((32,), (64, 128))
    found = compare_speed(model, copy.deepcopy(model), batches=(1,), lengths=(8, 64), rounds=1)
    assert [row["length"] for row in found["rows"]] == [8]
    assert found["notes"] == ["length 64 is more than the model's positions allow"]


# --- timing


def test_a_faster_model_is_found_faster_by_the_right_amount():
    found, models, _ = timed(jitter(0.010, seed=5), jitter(0.008, seed=1), batches=(1, 2), lengths=(3,), rounds=30)
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        assert row["ratio"]["low"] < 1.25 < row["ratio"]["high"] or abs(row["ratio"]["median"] - 1.25) < 0.02
        assert row["significant"]
        assert row["rounds"] == 30
        assert row["dense_ms"]["median"] == pytest.approx(10, rel=0.02)
        assert row["calls"]["dense"] in (3, 4)
        assert row["calls"]["cut"] in (4, 5)
        assert row["warm"]
    assert found["drift"] == {"steady": True, "unsteady": []}
    assert models[0].calls > models[1].calls


def test_no_significant_difference_is_an_answer():
    answers = [
        timed(jitter(0.01, 0.05, 2 * i), jitter(0.01, 0.05, 2 * i + 1), batches=(1,), lengths=(3,))[0]["rows"][0]
        for i in range(20)
    ]
    assert sum(row["significant"] for row in answers) <= 1
    assert all(0.95 < row["ratio"]["median"] < 1.05 for row in answers)


def test_a_slower_model_is_significantly_slower():
    row = timed(jitter(0.008), jitter(0.010, seed=1), batches=(1,), lengths=(3,))[0]["rows"][0]
    assert row["significant"]
    assert row["ratio"]["high"] < 1


def test_a_slowing_machine_slows_both_and_leaves_the_ratio():
    dense, cut = itertools.repeat(0.010), itertools.repeat(0.008)
    row = timed(dense, cut, pace=lambda now: 1 + now, batches=(1,), lengths=(3,), rounds=40)[0]["rows"][0]
    assert row["dense_ms"]["high"] > 2 * row["dense_ms"]["low"]
    assert row["ratio"]["median"] == pytest.approx(1.25, rel=0.05)
    assert row["drift"]["low"] <= 1 <= row["drift"]["high"]


@pytest.mark.parametrize(("again", "significant"), [(10.0, True), (12.0, False), (8.0, False), (10.5, True)])
def test_a_difference_within_the_drift_is_not_called_one(again, significant):
    draw = np.random.default_rng(0)
    dense, cut, once_more = (t * (1 + 0.01 * draw.standard_normal(30)) for t in (10.0, 9.0, again))
    row = row_of(Times(dense, cut, once_more, {"dense": 1, "cut": 1}, True), (4, 2), seed=0)
    assert 1.09 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"] < 1.13
    assert row["significant"] is significant
    assert row["operation_ratio"] == 2
    assert drift_of([{"batch": 1, "length": 2, **row}])["steady"] == (again == 10.0)


def test_few_rounds_are_not_sure_of_anything_that_a_sign_test_is_not():
    row = timed(itertools.repeat(0.02), itertools.repeat(0.01), batches=(1,), lengths=(3,), rounds=5)[0]["rows"][0]
    assert row["ratio"]["low"] > 1.9
    assert row["p"] == pytest.approx(2 / 2**5)
    assert not row["significant"]
    row = timed(itertools.repeat(0.02), itertools.repeat(0.01), batches=(1,), lengths=(3,), rounds=6)[0]["rows"][0]
    assert row["significant"]


@pytest.mark.parametrize("rounds", [3, 6, 7, 9, 12, 20, 30])
def test_interval_test_and_words_say_the_same(rounds):
    draw, said = np.random.default_rng(rounds), set()
    for _ in range(40):
        dense, cut, again = (t * np.exp(0.03 * draw.standard_normal(rounds)) for t in (1.01, 1.0, 1.01))
        row = row_of(Times(dense, cut, again, {"dense": 1, "cut": 1}, True), (1, 1), seed=0)
        apart = not row["ratio"]["low"] <= 1 <= row["ratio"]["high"]
        assert apart == (row["p"] < 0.05) or rounds < 6
        # Beside an interval that excludes 1 stands what is held against it.
        assert row["significant"] or rounds < 6 or apart == ("against itself" in doubt(row))
        said.add(doubt(row))
    assert said == {"3 rounds are too few to tell"} if rounds == 3 else "no significant difference" in said


def test_the_time_budget_is_kept_and_the_rounds_say_so():
    found, _, clock = timed(jitter(0.05), jitter(0.05, seed=1), batches=(1, 2), lengths=(3, 4), rounds=1000, seconds=40)
    assert 30 < clock.now < 45
    assert all(6 <= row["rounds"] < 1000 for row in found["rows"])
    assert found["notes"] == []
    # So little time that nothing fits: the fewest rounds of the largest setting are still done.
    found, _, clock = timed(jitter(1.0), jitter(1.0), batches=(1, 2), lengths=(3,), rounds=1000, seconds=1)
    assert [(row["batch"], row["rounds"]) for row in found["rows"]] == [(2, 6)]
    assert found["notes"] == ["batch 1 × length 3 was not timed: the 0.8 seconds for the grid were over"]
    assert not found["rows"][0]["warm"]


def test_the_grid_is_whole_and_reproducible_but_for_time():
    first, second = (timed(jitter(0.01), jitter(0.01, seed=1), batches=(1, 2), lengths=(3, 5))[0] for _ in range(2))
    assert [(r["batch"], r["length"]) for r in first["rows"]] == [(1, 3), (1, 5), (2, 3), (2, 5)]
    assert first == second


# --- fair and without a trace


def test_training_flags_hooks_and_garbage_collection_come_back():
    dense = make(BertModel, BertConfig, **SMALL)
    dense.train()
    dense.encoder.layer[0].eval()
    cut = copy.deepcopy(dense)
    # Asking for hidden states once leaves dormant hooks of transformers' own: no reason to refuse.
    dense(input_ids=torch.tensor([[5]]), output_hidden_states=True)
    flags = [m.training for m in dense.modules()]
    hooks = [list(m._forward_hooks.items()) for m in dense.modules()]
    assert any(hooks)
    compare_speed(dense, cut, batches=(1,), lengths=(4,), rounds=1)
    assert [m.training for m in dense.modules()] == flags
    assert [list(m._forward_hooks.items()) for m in dense.modules()] == hooks
    assert gc.isenabled()


def test_hooks_are_refused_but_not_the_cuts_own():
    class KeepOutput:
        def __call__(self, module, args, output):
            return None

    dense = make(BertModel, BertConfig, **SMALL)
    cut = copy.deepcopy(dense)
    cut.encoder.register_forward_hook(KeepOutput())
    compare_speed(dense, cut, batches=(1,), lengths=(4,), rounds=1)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        handle = getattr(cut.encoder.layer[1], register)(lambda *_: None)
        with pytest.raises(BadInput, match=r"a forward hook is on 'encoder\.layer\.1'"):
            compare_speed(dense, cut, batches=(1,), lengths=(4,), rounds=1)
        handle.remove()


def test_models_that_are_not_run_alike_are_not_compared():
    dense = make(BertModel, BertConfig, **SMALL)
    with pytest.raises(BadInput, match="kernel is sdpa, the cut model's eager"):
        compare_speed(dense, make(BertModel, BertConfig, **SMALL, attn_implementation="eager"))
    with pytest.raises(BadInput, match="dtype is float32, the cut model's bfloat16"):
        compare_speed(dense, copy.deepcopy(dense).bfloat16())


def test_fewer_heads_mean_fewer_operations_parameters_and_bytes():
    dense = make(BertModel, BertConfig, **SMALL)
    cut = copy.deepcopy(dense)
    for layer in cut.encoder.layer:
        attention = layer.attention.self
        # Two of four heads, by hand: the widths of the four projections halve.
        for name in ("query", "key", "value"):
            linear = getattr(attention, name)
            linear.weight, linear.bias = nn.Parameter(linear.weight[:8].clone()), nn.Parameter(linear.bias[:8].clone())
        output = layer.attention.output.dense
        output.weight = nn.Parameter(output.weight[:, :8].clone())
        attention.num_attention_heads, attention.all_head_size = 2, 8
    found = compare_speed(dense, cut, batches=(1, 3), lengths=(20,), rounds=1)
    last = found["rows"][1]
    assert last["operations"] == {"dense": by_hand(3, 20, heads=4), "cut": by_hand(3, 20, heads=2)}
    assert found["operations"] == last["operations"]
    assert last["operation_ratio"] == pytest.approx(by_hand(3, 20, 4) / by_hand(3, 20, 2))
    # Four projections of head_dim × width each, with three biases, per head.
    gone = 2 * 2 * (4 * 4 * 16 + 3 * 4)
    assert found["parameters"]["dense"] - found["parameters"]["cut"] == gone
    assert found["bytes"]["dense"] - found["bytes"]["cut"] == 4 * gone


# --- the blocks alone, generation, memory


LLAMA = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24,
}  # fmt: skip
T5 = {"vocab_size": 40, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 24}


@pytest.mark.parametrize(
    ("block", "output", "path"),
    [
        ("encoder.layer.0.attention.self", "encoder.layer.0.attention.output.dense", "encoder.layer.0.attention"),
        ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj", "model.layers.1.self_attn"),
        ("h.1.attn", "h.1.attn.c_proj:weight", "h.1.attn"),
    ],
)
def test_a_block_holds_all_projections(block, output, path):
    assert block_of(Site("0", block, output, 2, 2, 4)) == path


def test_the_attention_blocks_alone_have_the_operations_on_paper():
    dense = make(BertModel, BertConfig, **SMALL)
    smaller = cut(copy.deepcopy(dense), {"0": [0, 1], "1": [0, 1]})
    found = compare_speed(dense, smaller, batches=(3,), lengths=(20,), rounds=1)["attention"]
    assert found["blocks"] == ["encoder.layer.0.attention", "encoder.layer.1.attention"]

    def on_paper(heads):
        return 2 * (2 * 3 * 20 * 16 * 4 * heads * 4 + 2 * 3 * heads * 20 * 20 * 4 * 2)

    assert found["operations"] == {"dense": on_paper(4), "cut": on_paper(2)}
    assert found["operation_ratio"] == 2


def test_a_block_that_is_called_twice_is_not_timed_alone():
    config = {**SMALL, "embedding_size": 8}
    model = make(AlbertModel, AlbertConfig, **config)
    assert compare_speed(model, copy.deepcopy(model), batches=(1,), lengths=(4,), rounds=1)["attention"] is None


@pytest.mark.parametrize(
    ("kind", "config", "plan", "states"),
    [
        # Layers × (keys, values) × key/value heads × head_dim, a token, in float32.
        (LlamaForCausalLM, LlamaConfig(**LLAMA), {"0": [0, 1]}, (2 * 2 * 2 * 8, (1 + 2) * 2 * 8)),
        # Cross-attention keeps the prompt, the decoder's own attention one token.
        (T5ForConditionalGeneration, T5Config(**T5), {"decoder.cross.0": [0, 1]}, None),
    ],
)
def test_generation_is_timed_by_first_and_further_tokens(kind, config, plan, states):
    torch.manual_seed(0)
    dense = kind(config).eval()
    kept = dense.generation_config.to_dict()
    smaller = cut(copy.deepcopy(dense), plan)
    found = compare_speed(dense, smaller, batches=(1, 2), lengths=(6,), rounds=2, new_tokens=3)["generation"]
    assert [(row["batch"], row["length"], row["new_tokens"]) for row in found] == [(1, 6, 3), (2, 6, 3)]
    for row in found:
        for part in ("prefill", "decode"):
            assert row[part]["rounds"] == 2
            assert row[part]["dense_ms"]["median"] > 0
        batch, speed = row["batch"], row["tokens_per_second"]["dense"]
        assert speed == pytest.approx(1000 * batch / row["decode"]["dense_ms"]["median"], rel=0.5)
        if states:
            assert row["cache_bytes"] == {"dense": 4 * 6 * batch * states[0], "cut": 4 * 6 * batch * states[1]}
        else:
            heads = {"dense": (4 + 4, 4 + 4), "cut": (4 + 4, 2 + 4)}
            tokens = {name: own * 1 + cross * 6 for name, (own, cross) in heads.items()}
            assert row["cache_bytes"] == {name: 4 * batch * 2 * 8 * count for name, count in tokens.items()}
    assert dense.generation_config.to_dict() == kept


def test_what_does_not_write_has_no_generation():
    model = make(BertModel, BertConfig, **SMALL)
    assert compare_speed(model, copy.deepcopy(model), batches=(1,), lengths=(4,), rounds=1)["generation"] == []
    assert not generates(model)


def test_peak_memory_counts_what_is_alive_at_once():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

        def forward(self, x):
            for _ in range(5):
                x = x @ self.weight  # the one before is dropped as soon as the next one is there
            return x

    model, x = Steps(), torch.ones(16, 8)
    assert peak_memory(model, {"x": x}) == 2 * 16 * 8 * 4
    assert peak_memory(model, {"x": x}) == peak_memory(model, {"x": x})
    wide = make(BertModel, BertConfig, **SMALL)
    inputs = inputs_to_time(wide, 2, 16)
    assert peak_memory(cut(copy.deepcopy(wide), {"0": [0, 1], "1": [2]}), inputs) <= peak_memory(wide, inputs)


@pytest.mark.slow
def test_both_models_can_be_compiled():
    dense = make(BertModel, BertConfig, **SMALL)
    smaller = cut(copy.deepcopy(dense), {"0": [0, 1]})
    found = compare_speed(dense, smaller, batches=(1,), lengths=(4,), rounds=1, compiled="default")
    assert found["compiled"] == "default"
    assert found["rows"][0]["operation_ratio"] > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_is_waited_for():
    dense = make(BertModel, BertConfig, **SMALL).cuda()
    big = {**SMALL, "hidden_size": 1024, "num_hidden_layers": 12, "intermediate_size": 4096}
    slow = make(BertModel, BertConfig, **big).cuda()
    row = compare_speed(slow, dense, batches=(64,), lengths=(32,), rounds=5)["rows"][0]
    # Without waiting, twelve layers would seem to take six times as long as two, whatever their width.
    assert row["ratio"]["median"] > 6


class Event:
    """A GPU's event, as the clock uses it: milliseconds that are given one after the other."""

    at = iter(())

    def __init__(self, enable_timing):
        assert enable_timing
        self.synchronised = False

    def record(self, stream):
        self.time = next(Event.at)

    def synchronize(self):
        self.synchronised = True

    def elapsed_time(self, other):
        assert self.synchronised
        assert other.synchronised
        return np.float32(other.time - self.time).item()


def test_a_gpu_counts_its_own_time(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    # After a day, a 32-bit number of milliseconds since the beginning would be 8 ms off.
    monkeypatch.setattr(Event, "at", iter([0.0, 30.0, 30.25, 86_400_000.0, 86_400_000.5]))
    clock = EventClock(torch.device("cuda"))
    assert clock() == pytest.approx(0.03, abs=1e-9)
    assert clock() == pytest.approx(0.03025, abs=1e-9)
    start = clock()
    assert clock() - start == pytest.approx(5e-4, rel=1e-6)
