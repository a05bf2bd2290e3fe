"""Dry runs: every kind of budget is told as what it is, and checked as far as it can be without weights."""

import json
import shutil
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint.skeleton import skeleton
from headwise.prune.cli import main
from headwise.prune.compensation.undo import given_back
from headwise.prune.forecast.needs import Needs, Texts, require_memory
from headwise.prune.free_memory import free_memory
from headwise.prune.importance.passes import Passes
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget
from headwise.prune.speed.latency import Latency
from headwise.prune.speed.metering import NeedsWeights, meter_of
from headwise.prune.speed.operations import operations
from tests.prune import tiny_run
from tests.prune.importance_scene import batched, calibration, made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tiny_run.checkpoint(tmp_path_factory.mktemp("model"))
    tiny_run.table(folder / "texts.jsonl")
    return folder


def dry(checkpoint, capsys, *changes, code=0, quiet=True):
    words = ["prune", str(checkpoint), "-r", "gradient", "--dry-run", "--json", *(["--quiet"] if quiet else [])]
    words += ["--calibration", str(checkpoint / "texts.jsonl"), "--label-column", "label"]
    for change in changes:
        words += ["--set", change]
    assert main(words) == code
    said = capsys.readouterr()
    return json.loads(said.out) if code == 0 else " ".join(said.err.split())


@pytest.mark.parametrize(
    ("changes", "budget", "heads"),
    [
        (["remove.heads=3"], "3 heads", 3),
        (["remove.fraction=0.5"], "0.5 of the heads", 4),
        (["remove.parameters=0.1"], "0.1 of the parameters", None),
        (["remove={operations: 0.1, length: 16}"], "0.1 of the operations at 16 tokens", None),
        (["reach={drop: 0.02}", "remove.fraction=1.0"],
         "the most that surely stays below a drop of 0.02, at most 1 of the heads", None),
        (["reach={milliseconds: 3, batch: 2, length: 8}"],
         "at most 3 ms at batch 2 x 8 tokens; times are measured when the run begins", None),
    ],
)  # fmt: skip
def test_a_budget_is_told_as_what_it_is(checkpoint, capsys, changes, budget, heads):
    found = dry(checkpoint, capsys, *changes)
    assert found["budget"] == budget
    assert found["heads_removed"] == heads


def test_budgets_out_of_reach_are_refused_without_weights(checkpoint, capsys, tmp_path):
    said = dry(checkpoint, capsys, "remove={operations: 0.9, length: 16}", code=2)
    assert "The nearest budget that can be met is operations: 0." in said
    rows = dict.fromkeys("01", (0.0, 0.0, 1.0, 2.0, 3.0))
    setting = {"batch": 2, "length": 8, "unit": "group"}
    table = Latency(setting=setting, total=9.0, rows=rows, measured=()).save(tmp_path / "t.json")
    reach = f"batch: 2, length: 8, table: {json.dumps(str(table))}"
    found = dry(checkpoint, capsys, f"reach={{milliseconds: 5, {reach}}}", "remove.fraction=1.0")
    assert found["budget"] == "at most 5 ms at batch 2 x 8 tokens; 9 ms with all heads"
    said = dry(checkpoint, capsys, f"reach={{milliseconds: 2, {reach}}}", "remove.fraction=1.0", code=2)
    assert "milliseconds: 3 with scope" in said


@pytest.mark.parametrize(
    ("repair", "searched"),
    [
        ("none", ("search={kind: counts, evaluations: 50}", "search={kind: counts, evaluations: 0}", 50 * 0.2)),
        ("bias", ("search={kind: counts, evaluations: 50}", "search={kind: counts, evaluations: 0}", 50 * 0.2)),
        ("scale", ("reach={drop: 0.1}", "seed=1", 4 * 0.2)),
    ],
)
def test_a_search_on_the_model_takes_time(checkpoint, capsys, repair, searched):
    """Moments are there after the first repair; the steps to a drop are as many as heads may go."""
    with_it, without, more = searched
    tried, alone = (
        dry(checkpoint, capsys, f"compensate.kind={repair}", "remove.heads=4", change)["time"]["passes"]
        for change in (with_it, without)
    )
    assert tried == pytest.approx(alone + more)


def passed(model, batches, work):
    """Passes forward alone and forward and back that a piece of work makes, from the model's own calls."""
    seen = []
    handle = model.base_model.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    work()
    handle.remove()
    return seen.count(False) / len(batches), seen.count(True) / len(batches)


SCORING = [
    ["score.kind=gradient"],
    ["score={kind: gradient, loss: outputs}"],
    ["score={kind: taylor2, loss: predictions}"],
    ["score.kind=reconstruction"],
    ["score={kind: reconstruction, loss: labels}"],
    ["score={kind: reconstruction, weight: gradient}"],
    ["score={kind: reconstruction, weight: none}"],
    ["score={kind: reconstruction, recollect: 2}"],
    ["score={kind: combined, scores: {gradient: 1, reconstruction: 1, activation: 1, fisher: 1}}"],
    ["score={kind: ablation, loss: outputs}"],
    ["score={kind: gates, steps: 4, loss: predictions, again: 1}"],
    ["score.kind=random"],
]
REPAIRS = [
    ["compensate={kind: reconstruction}"],
    ["compensate={kind: reconstruction, weight: gradient, loss: labels}"],
    ["compensate={kind: reconstruction, weight: gradient, values: keep}"],
    ["compensate={kind: reconstruction, correct: none, values: refit}"],
    ["compensate={kind: reconstruction, correct: outputs, values: keep}"],
    ["compensate={kind: scale}"],
    ["compensate={kind: none}"],
]


def seeing_alike():
    """A model whose first two heads attend alike and say little, so that either can stand in for both."""
    model = made("bert")
    block = model.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        for part in (block.query, block.key):
            part.weight[8:16], part.bias[8:16] = part.weight[:8], part.bias[:8]
        for head in (0, 1):
            block.value.weight[8 * head + 4 : 8 * head + 8] = 0
    return model


@pytest.mark.parametrize(
    ("score", "repair"), [*product(SCORING, REPAIRS[:2]), *product(SCORING[2:4], REPAIRS[2:])], ids=str
)
def test_passes_are_foretold_as_they_are_made(score, repair):
    """By any score and then any repair, twice: what one has had, the next need not ask for."""
    model = seeing_alike()
    recipe = Recipe.load("reconstruction", [*score, *repair])
    rows = [np.random.default_rng(i).integers(1, 50, size=6 + i % 5).tolist() for i in range(24)]
    context = calibration(model, batched(8, rows=rows))
    passes = Passes(context.sites, texts=24, batches=3, scored=True)

    def mend():
        report = recipe.compensate.repair(context, {"0": [1]})
        assert "values" not in report or report["values"], "contexts are looked at again where values are others"

    with given_back(model, context.sites):
        for part, work in ((recipe.score, lambda: recipe.score.score(context)), *[(recipe.compensate, mend)] * 2):
            said = passes.ask(part)
            assert passed(model, context.batches, work) == pytest.approx((said.forward, said.back)), part.kind


def test_a_repair_whose_passes_serve_nothing_else_says_how_many_it_takes():
    """In order: each time anew, whatever was passed before."""
    passes = Passes({}, texts=24, batches=3, scored=True)
    passes.contexts()
    assert [passes.ask(Recipe.load("reconstruction", ["compensate.kind=sequential"]).compensate).forward] * 2 == [4, 4]


def test_operations_are_counted_on_the_shapes_alone(checkpoint):
    from headwise.prune.checkpoint import load
    from headwise.prune.speed.inputs import inputs_to_time

    bare, whole = skeleton(str(checkpoint)), load(checkpoint)
    budget = Budget(operations=0.1, length=16)
    counted = meter_of(bare, find_sites(bare), budget)
    assert counted.total == operations(whole, inputs_to_time(whole, 1, 16))
    assert counted.per_head == meter_of(whole, find_sites(whole), budget).per_head


def test_what_takes_weights_to_be_counted_is_said(checkpoint, capsys, tmp_path, caplog):
    from transformers import BartConfig, BartForSequenceClassification

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 60}
    model = BartForSequenceClassification(BartConfig(**sizes, **heads, id2label={0: "no", 1: "yes"}))
    model.save_pretrained(tmp_path)
    tiny_run.tokenizer().save_pretrained(tmp_path)
    shutil.copy(checkpoint / "texts.jsonl", tmp_path)
    bare = skeleton(str(tmp_path))
    with pytest.raises(NeedsWeights, match="takes its weights"):
        meter_of(bare, find_sites(bare), Budget(operations=0.1, length=16))
    dry(tmp_path, capsys, "remove={operations: 0.1, length: 16}", quiet=False)
    assert "is known when the run begins" in caplog.text


def test_texts_that_are_here_are_counted_and_not_supposed(checkpoint, capsys):
    found = dry(checkpoint, capsys)
    rows = len((checkpoint / "texts.jsonl").read_text().splitlines())
    assert found["time"]["texts"] + found["texts"]["evaluation"] == rows
    assert found["time"]["texts"] == found["texts"]["calibration"]
    assert 0 < found["tokens_a_text"]["mean"] <= found["tokens_a_text"]["most"] < 64
    assert found["bytes"]["peak_about"] > found["bytes"]["weights"]


@pytest.mark.parametrize(
    "changes",
    [[], ["score.weight=gradient", "compensate.weight=gradient"], ["score.weight=none"], ["score.kind=random"]],
)
def test_moments_take_what_was_said(changes):
    """The sums of a run, held against the law by their storages."""
    model = made("bert")
    sites = find_sites(model)
    recipe = Recipe.load("reconstruction", changes)
    context = calibration(model)
    recipe.score.score(context)
    recipe.compensate.model_copy(update={"values": "keep", "correct": "none"}).repair(context, {"0": [1]})
    held = {}
    for found in context._passes.values():
        if not hasattr(found, "slopes"):
            continue
        sums = [m.second for table in (found.fit, found.held) for m in table.values()] + list(found.slopes.values())
        if found.grouped is not None:
            sums += [m.second for groups in found.grouped.moments.values() for m in groups]
            sums += [one for groups in found.grouped.slopes.values() for one in groups]
        held |= {one.data_ptr(): one.nbytes for one in sums}
    needs = Needs(recipe, model, sites, 8, Texts(4, 4, 8.0, 8))
    assert sum(held.values()) == needs.moments()


def test_what_cannot_fit_is_refused_before_anything_is_measured_and_what_may_not_is_told(monkeypatch, caplog):
    model = made("bert", torch.float32)
    needs = Needs(Recipe.load("reconstruction"), model, find_sites(model), 4, Texts(1000, 100, 60.0, 64))
    monkeypatch.setattr("headwise.prune.forecast.needs.free_beside", lambda _: 10)
    require_memory(needs)
    assert not caplog.text, "what is small is not looked at"
    monkeypatch.setattr("headwise.prune.forecast.needs._SMALL", 0)
    with pytest.raises(BadInput, match=r"not enough memory.*moments.*10 B are free.*compensate: \{kind: none\}"):
        require_memory(needs)
    monkeypatch.setattr("headwise.prune.forecast.needs.free_beside", lambda _: needs.moments() + needs.weights())
    require_memory(needs)
    assert "memory may not suffice" in caplog.text
    caplog.clear()
    monkeypatch.setattr("headwise.prune.forecast.needs.free_beside", lambda _: needs.peak())
    require_memory(needs)
    assert not caplog.text


def test_a_training_takes_memory_and_time(checkpoint, capsys):
    """Of all weights: gradients, two moments and the best so far; of low-rank updates next to nothing."""
    plain, whole, low = (
        dry(checkpoint, capsys, f"recover={{{how}}}")
        for how in ("kind: none", "kind: finetune", "kind: distil, lora: 4")
    )
    assert [found["bytes"]["training"] for found in (plain, low)] == [0, 0]
    assert whole["bytes"]["training"] == 4 * whole["bytes"]["weights"]
    half = dry(checkpoint, capsys, "recover={kind: finetune}", "model.dtype=bfloat16")
    # Beside gradients and the best so far: copies in float32, their gradients and both moments.
    assert half["bytes"]["training"] == (2 * 2 + 4 * 4) * half["bytes"]["weights"] // 2
    assert whole["time"]["passes"] == pytest.approx(plain["time"]["passes"] + 3 * 3 * 7 / 8 + 4 / 8 + 1, abs=0.11)
    assert low["time"]["passes"] == pytest.approx(whole["time"]["passes"] + 3 * 7 / 8 + 4 / 8, abs=0.11)


def test_free_memory_is_what_the_system_says():
    free = free_memory()
    assert free is None or 0 < free < 2**50


def test_what_is_needed_grows_with_the_square_of_the_width_and_with_the_number_of_sites():
    def moments(hidden, layers):
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=64, vocab_size=64))
        needs = Needs(Recipe.load("reconstruction"), model, find_sites(model), 2, Texts(100, 100, 60.0, 64))
        return needs.moments()

    assert moments(4096, 32) == 3 * 8 * 32 * 4096**2, "12.9 GB for a model of 7B"
    assert moments(8192, 80) == 10 * moments(4096, 32)
