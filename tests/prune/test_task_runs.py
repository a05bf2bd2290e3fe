"""Each kind of task from files on disk, as a user goes: prune, draw the report again, judge again."""

import csv
import json

import numpy as np
import pytest
from transformers import BertConfig, BertForSequenceClassification

from headwise.analysis.corpus.texts import Corpus, Text
from headwise.prune.cli import main
from headwise.prune.tasks import TASKS
from tests.prune import test_answering_tasks as answering
from tests.prune import test_hearing_tasks as hearing
from tests.prune import test_labelled_tasks as labelled

place = hearing.place  # images and clips on disk, each with a checkpoint


def classifier():
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    return labelled.make(BertForSequenceClassification, BertConfig, **labelled.BERT, **names)


def classified(_, n):
    return Corpus([Text(t.text, label=["no", "yes"][i % 2]) for i, t in enumerate(labelled.corpus("", n).texts)])


def paired(_, n):
    return labelled.corpus("sequence-to-sequence", n)


#: Kind: model, texts, the kind of file, its columns.
FROM_TEXTS = {
    "text-classification": (classifier, classified, "csv", {"text": "a", "label": "c"}),
    "multi-label": (labelled.MODELS["multi-label"], labelled.corpus, "jsonl", {"text": "a", "label": "list"}),
    "text-regression": (labelled.MODELS["text-regression"], labelled.corpus, "tsv", {"text": "a", "label": "c"}),
    "token-classification": (
        labelled.MODELS["token-classification"], labelled.corpus, "jsonl", {"text": "words", "label": "list"},
    ),
    "question-answering": (
        answering.MODELS["question-answering"], answering.corpus, "jsonl",
        {"text": "a", "pair": "b", "label": "answers"},
    ),
    "multiple-choice": (
        answering.MODELS["multiple-choice"], answering.corpus, "jsonl", {"text": "a", "choices": "d", "label": "c"},
    ),
    "causal-lm": (labelled.MODELS["minimal-pairs"], labelled.corpus, "txt", {}),
    "masked-lm": (labelled.MODELS["masked-lm"], labelled.corpus, "txt", {}),
    "minimal-pairs": (
        labelled.MODELS["minimal-pairs"], labelled.corpus, "jsonl", {"text": "a", "pair": "b", "label": "c"},
    ),
    "sequence-to-sequence": (labelled.MODELS["sequence-to-sequence"], paired, "jsonl", {"text": "a", "pair": "b"}),
    "embedding-probe": (labelled.MODELS["embedding-similarity"], classified, "csv", {"text": "a", "label": "c"}),
    "embedding-retrieval": (labelled.MODELS["embedding-similarity"], paired, "csv", {"text": "a", "pair": "b"}),
    "embedding-similarity": (
        labelled.MODELS["embedding-similarity"], labelled.corpus, "tsv", {"text": "a", "pair": "b", "label": "c"},
    ),
    "agreement": (classifier, labelled.corpus, "txt", {}),
}  # fmt: skip
#: What the recipe has to say of the task; all others follow from the checkpoint and the columns.
SAID = {
    "minimal-pairs": {"kind": "minimal-pairs"},
    "sequence-to-sequence": {"kind": "sequence-to-sequence", "new_tokens": 6},
}


def write(path, texts):
    """The texts as files of that kind usually hold them."""
    if path.suffix == ".txt":
        path.write_text("\n".join(text.text for text in texts))
        return
    rows = [{"a": t.text, "b": t.pair, "c": t.label} for t in texts]
    if path.suffix == ".jsonl":
        more = ({"words": t.text.split(), "list": str(t.label).split(), "d": t.choices,
                 "answers": {"text": str(t.label).split("\n") if t.label else []}} for t in texts)  # fmt: skip
        path.write_text("".join(json.dumps(row | extra) + "\n" for row, extra in zip(rows, more, strict=True)))
        return
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ["a", "b", "c"], delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writeheader()
        table.writerows(rows)


def laid_out(kind, folder, request):
    """Checkpoint, calibration, evaluation and columns of a kind."""
    if kind in hearing.COLUMNS:
        shown, what = request.getfixturevalue("place")[0], "images" if kind.startswith("image") else "clips"
        return shown / kind, shown / what, shown / f"{what}-dev", hearing.COLUMNS[kind]
    model, texts, suffix, columns = FROM_TEXTS[kind]
    model().save_pretrained(folder / "model")
    made = answering if kind in answering.MODELS and kind != "minimal-pairs" else labelled
    made.tokenizer().save_pretrained(folder / "model")
    rows = texts(kind, 36).texts
    write(folder / f"calibration.{suffix}", rows[:20])
    write(folder / f"evaluation.{suffix}", rows[20:])
    return folder / "model", folder / f"calibration.{suffix}", folder / f"evaluation.{suffix}", columns


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind != "lm-eval"])
def test_a_task_goes_through_a_whole_run(kind, tmp_path, capsys, request):
    model, decides, judges, columns = laid_out(kind, tmp_path, request)
    told = {
        "schema": 1, "remove": {"heads": 2}, "compensate": {"kind": "bias"}, "data": {"batch_size": 8},
        "score": {"kind": "magnitude" if kind in hearing.COLUMNS else "gradient"},
        "speed": {"batches": [1], "lengths": [4], "rounds": 3, "seconds": 1},
        **({"task": SAID[kind]} if kind in SAID else {}),
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(told))
    run = tmp_path / "run"
    words = ["prune", model, "--recipe", tmp_path / "recipe.yaml", "--calibration", decides, "--evaluation", judges]
    for name, column in columns.items():
        # Columns of choices have no option of their own.
        named = [f"--set=data.{part}.choices={column}" for part in ("calibration", "evaluation")]
        words += named if name == "choices" else [f"--{name}-column", column]
    code = main([str(word) for word in [*words, "--output-dir", run, "-q"]])
    assert code == 0, capsys.readouterr().err

    accuracy = json.loads((run / "accuracy.json").read_text())
    count = 8 if kind in hearing.COLUMNS else 16
    assert (accuracy["kind"], accuracy["rows"]) == (kind, count)
    assert np.isfinite([accuracy["dense"]["value"], accuracy["cut"]["value"]]).all()
    # The heads that went are felt: a task that looked past the model would see no difference.
    assert accuracy["changed"], accuracy
    assert json.loads((run / "proof.json").read_text())["passed"]
    drawn = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text() == drawn
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["accuracy"]
    for name in ("dense", "cut", "drop", "interval", "p", "changed"):
        assert again[name] == accuracy[name], name
