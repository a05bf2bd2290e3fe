"""Each kind of task from files on disk: a whole run, and the same judged again from its folder."""

import json

import pytest
from transformers import BartConfig, BartForConditionalGeneration

from headwise.prune.cli import main
from tests.prune import test_answering_tasks as answering
from tests.prune import test_labelled_tasks as labelled


def rows_of(kind, texts):
    """The texts as their usual files hold them, and the columns that a recipe names."""
    if kind == "question-answering":
        rows = [{"question": t.text, "context": t.pair, "answers": {"text": t.label.split("\n") if t.label else []}}
                for t in texts]  # fmt: skip
        return rows, {"text": "question", "pair": "context", "label": "answers"}
    if kind == "multiple-choice":
        rows = [{"sent1": t.text, "sent2": t.pair or "", "endings": list(t.choices), "label": t.label} for t in texts]
        return rows, {"text": "sent1", "choices": "endings", "label": "label"}
    rows = [{"a": t.text, "b": t.pair} for t in texts]
    return rows, {"text": "a", "pair": "b"}


CASES = {
    "question-answering": ({}, lambda: answering.MODELS["question-answering"](), answering),
    "multiple-choice": ({}, lambda: answering.MODELS["multiple-choice"](), answering),
    "minimal-pairs": ({"kind": "minimal-pairs"}, lambda: answering.MODELS["minimal-pairs"](), answering),
    "sequence-to-sequence": (
        {"kind": "sequence-to-sequence", "metric": "rouge-l", "new_tokens": 6},
        lambda: labelled.make(BartForConditionalGeneration, BartConfig, **labelled.BART), labelled,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [kind if kind == "question-answering" else pytest.param(kind, marks=pytest.mark.slow) for kind in CASES]
)
def test_a_task_goes_through_a_whole_run(kind, tmp_path, capsys):
    task, model, made = CASES[kind]
    model().save_pretrained(tmp_path / "model")
    made.tokenizer().save_pretrained(tmp_path / "model")
    rows, columns = rows_of(kind, made.corpus(kind, 40).texts)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "schema": 1, "data": {"calibration": {"source": str(tmp_path / "texts.jsonl"), **columns}},
        "score": {"kind": "gradient"}, "remove": {"heads": 2}, "compensate": {"kind": "none"},
        "speed": {"batches": [1], "lengths": [8], "rounds": 3, "seconds": 1}, **({"task": task} if task else {}),
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["prune", str(tmp_path / "model"), "--recipe", str(tmp_path / "recipe.yaml"), "-q"]
    code = main([*words, "--output-dir", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err
    accuracy = json.loads((tmp_path / "run" / "accuracy.json").read_text())
    assert (accuracy["kind"], accuracy["rows"]) == (kind, 20)
    assert json.loads((tmp_path / "run" / "proof.json").read_text())["passed"]
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["cut"] == accuracy["cut"]
