"""Benchmarks of the evaluation harness on a model in memory; without the harness, a clear message."""

import json
import sys

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from headwise.analysis.corpus import Corpus, Text, batches
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.prune.cli import main
from headwise.prune.recipe import Recipe
from headwise.prune.recipe_errors import RecipeError
from headwise.prune.tasks import TASKS, compare
from headwise.prune.tasks.causal_lm import CausalLM
from tests.prune.test_answering_tasks import BERT, GPT, corpus, make, tokenizer

TEXTS = Corpus([Text("w1 w2 w3"), Text("w4 w5 w6 w7")])


def task(**options):
    return TASKS["lm-eval"](**{"tasks": ("mini",), **options})


def test_without_the_harness_there_is_a_clear_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(BadInput, match=r"pip install 'headwise\[lm-eval\]'"):
        task().fit(make(GPT2LMHeadModel, GPT2Config, **GPT), tokenizer(pairs=False), TEXTS)


def test_only_causal_language_models_are_judged():
    with pytest.raises(BadInput, match="BertModel: benchmarks of lm-eval need a causal language model"):
        task().fit(make(BertModel, BertConfig, **BERT), tokenizer(), TEXTS)


def test_benchmarks_do_not_decide():
    told = "schema: 1\nscore: {kind: magnitude}\ntask: {kind: lm-eval, tasks: [mini]}\nreach: {drop: 0.01}\n"
    with pytest.raises(RecipeError, match=r":3: task.kind: candidates would be tried on the documents that judge"):
        Recipe.from_text(told, "my.yaml")
    assert Recipe.from_text(told.replace("reach: {drop: 0.01}", "remove: {heads: 1}")).task.tasks == ("mini",)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Two benchmarks of choices, of 24 and 6 documents, which a language model can be asked about offline."""
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    folder = tmp_path_factory.mktemp("benchmarks")
    texts = corpus("multiple-choice", 30)
    for name, part in (("mini", texts.texts[:24]), ("other", texts.texts[24:])):
        file = folder / f"{name}.jsonl"
        rows = [{"q": f"{t.text} {t.pair}" if t.pair else t.text, "c": list(t.choices), "a": t.label} for t in part]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]
        said = {
            "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}",
            "doc_to_choice": "{{c}}", "doc_to_target": "{{a}}", "metric_list": metrics,
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(said))
    return folder, texts


@pytest.mark.slow
def test_benchmarks_judge_the_model_in_memory_as_choices_do(mine):
    """The harness's two accuracies are those of the task of choices, with and without regard to length."""
    folder, texts = mine
    model, tok = make(GPT2LMHeadModel, GPT2Config, **GPT), tokenizer(pairs=False)
    heads = {"0": [0], "1": [1]}
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    fitted = task(include=str(folder), metric="acc_norm").fit(model.train(), tok, TEXTS, batch_size=4)
    dense = fitted.judge(model, TEXTS)
    with gated(model, heads):
        cut = fitted.judge(model, TEXTS)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), before)
    model.eval()
    some = Corpus(texts.texts[:24])
    choose = TASKS["multiple-choice"]().fit(model, tok, some)
    assert dense.per_example.tolist() == choose.judge(model, some).per_example.tolist()
    with gated(model, heads):
        assert cut.per_example.tolist() == choose.judge(model, some).per_example.tolist()
        plain = TASKS["multiple-choice"](normalise="none").fit(model, tok, some).judge(model, some)
    assert cut.beside == {"mini: acc": pytest.approx(plain.value), "mini: acc_norm": pytest.approx(cut.value)}
    found = compare(dense, cut, resamples=50)
    assert (found["metric"], found["n"], found["test"]) == ("accuracy", 24, "McNemar, exact")
    assert cut.drawn_from(TEXTS) == 24
    assert fitted.brief(5).judge(model, TEXTS).per_example.tolist() == dense.per_example.tolist()[:5]
    # The calibration texts decide, by what the model was trained for.
    batch = next(iter(batches(TEXTS, tok, model=model)))
    assert torch.equal(fitted.losses(model, batch), CausalLM().fit(model, tok, TEXTS).losses(model, batch))


@pytest.mark.slow
def test_every_benchmark_counts_the_same(mine):
    folder, _ = mine
    model, tok = make(GPT2LMHeadModel, GPT2Config, **GPT), tokenizer(pairs=False)
    outcome = task(include=str(folder), tasks=("mini", "other")).fit(model, tok, TEXTS).judge(model, TEXTS)
    assert outcome.value == pytest.approx((outcome.beside["mini: acc"] + outcome.beside["other: acc"]) / 2)
    found = compare(outcome, outcome, resamples=50)
    assert found["dense"]["value"] == pytest.approx(outcome.value)
    assert {name: part["n"] for name, part in found["per_class"].items()} == {"mini": 24, "other": 6}


@pytest.mark.slow
def test_what_the_harness_does_not_know_is_said(mine):
    folder, _ = mine
    model, tok = make(GPT2LMHeadModel, GPT2Config, **GPT), tokenizer(pairs=False)
    with pytest.raises(BadInput, match="include: /nowhere is no folder"):
        task(include="/nowhere").fit(model, tok, TEXTS)
    with pytest.raises(BadInput, match="no f1 of single documents; it has acc, acc_norm"):
        task(include=str(folder), metric="f1").fit(model, tok, TEXTS).judge(model, TEXTS)
    (folder / "mini.jsonl").rename(folder / "gone.jsonl")
    try:
        with pytest.raises(BadInput, match="lm-eval could not run mini"):
            task(include=str(folder)).fit(model, tok, TEXTS).judge(model, TEXTS)
    finally:
        (folder / "gone.jsonl").rename(folder / "mini.jsonl")


@pytest.mark.slow
def test_a_run_is_judged_by_benchmarks(mine, tmp_path, capsys):
    folder, _ = mine
    make(GPT2LMHeadModel, GPT2Config, **GPT).save_pretrained(tmp_path / "model")
    tokenizer(pairs=False).save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(t.text for t in corpus("multiple-choice", 40).texts))
    recipe = {
        "schema": 1, "data": {"calibration": {"source": str(tmp_path / "texts.txt")}}, "score": {"kind": "magnitude"},
        "task": {"kind": "lm-eval", "tasks": ["mini"], "include": str(folder)}, "remove": {"heads": 2},
        "speed": {"batches": [1], "lengths": [8], "rounds": 3, "seconds": 1},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["prune", str(tmp_path / "model"), "--recipe", str(tmp_path / "recipe.yaml")]
    code = main([*words, "--output-dir", str(tmp_path / "run"), "-q"])
    assert code == 0, capsys.readouterr().err
    accuracy = json.loads((tmp_path / "run" / "accuracy.json").read_text())
    assert (accuracy["kind"], accuracy["n"], accuracy["rows"]) == ("lm-eval", 24, 24)
    assert set(accuracy["beside"]) == {"mini: acc", "mini: acc_norm"}
    assert accuracy["chance"]["n"] == 24
