"""Labels that are all one: told in a warning, in the results, and on the page."""

import json

import numpy as np
import pytest

from headwise.analysis.corpus.texts import Corpus, Text
from headwise.prune.cli import main
from headwise.prune.report import content
from headwise.prune.tasks.compare import compare
from headwise.prune.tasks.one_label import one_label
from headwise.prune.tasks.outcome import Outcome
from tests.prune import tiny_run


@pytest.mark.parametrize(
    ("kind", "labels", "shown"),
    [
        ("text-classification", ["yes", "yes", "yes"], "'yes'"),
        ("image-classification", [1, 1], "1"),
        ("text-regression", [0.5, 0.5], "0.5"),
        ("multi-label", ["", ""], "''"),
        ("token-classification", ["O O", "O"], "'O'"),
        ("token-classification", ["O B-PER", "O"], ""),
        ("text-classification", ["yes", "no"], ""),
        ("text-classification", ["yes"], ""),
        ("multi-label", ["a b", "a"], ""),
        # What these do with labels does not tell one from another.
        ("causal-lm", ["yes", "yes"], ""),
        ("multiple-choice", [0, 0], ""),
        ("agreement", [None, None], ""),
    ],
)
def test_one_label_is_told_where_labels_are_told_apart(kind, labels, shown, caplog):
    corpus = Corpus([Text(str(i), label=label) for i, label in enumerate(labels)])
    notes = one_label(corpus, "evaluation", kind)
    assert [f"all {len(labels)} have one label, {shown}: " in note for note in notes] == [True] * bool(shown)
    assert [record.getMessage() for record in caplog.records] == [f"evaluation texts: {note}" for note in notes]


def only(path, label):
    lines = [line for line in tiny_run.table(path, rows=96).read_text().splitlines() if label in line]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_and_a_judgement_tell_it(tmp_path, capsys, caplog):
    model = tiny_run.checkpoint(tmp_path / "model")
    texts = only(tmp_path / "yes.jsonl", '"label": "yes"')
    words = ["prune", str(model), "-r", "gradient", "--output-dir", str(tmp_path / "run")]
    for change in tiny_run.settings(None, texts):
        words += ["--set", change]
    assert main(words) == 0
    told = "evaluation texts: all 24 have one label, 'yes': a model that knows no other answer looks as good"
    assert told in caplog.text
    assert "calibration texts: all 24 have one label, 'yes': scores that look at labels see nothing" in caplog.text
    page = (tmp_path / "run" / "report.html").read_text()
    for note in content(tmp_path / "run").notes[:2]:
        assert note.replace("'", "&#39;") in page
    assert told[1:] in content(tmp_path / "run").notes[1]
    capsys.readouterr()
    said = ["evaluate", str(model), "--texts", str(texts), "--label-column", "label", "--text-column", "text"]
    assert main(said) == 0
    assert "all 24 have one label, 'yes'" in " ".join(capsys.readouterr().out.split())
    assert main([*said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "all 24 have one label" in found["texts"]["evaluation"]["notes"][0]


@pytest.mark.parametrize(("classes", "told"), [([1, 1, 1], True), ([1, 0, 1], False)])
def test_a_dense_model_that_says_one_thing_leaves_nothing_to_agree_about(classes, told):
    texts = [Text(str(i)) for i in range(3)]
    said = [np.array([number]) for number in classes]
    dense = Outcome("agreement", "agreement", 1.0, np.ones(3), True, texts, said, probabilities=np.ones((3, 2)) / 2)
    assert ("says the same of all" in compare(dense, dense)["meaning"]) is told


@pytest.mark.parametrize(("labels", "right", "told"), [
    (["a", "b"] * 20, [0.0] * 40, True),  # the other way round
    (["a", "b"] * 20, [1.0, 0.0] * 20, True),  # one answer for all
    (["a"] * 38 + ["b"] * 2, [1.0] * 39 + [0.0], True),  # as good as one answer, as far as these can tell
    (["a", "b"] * 20, [1.0] * 36 + [0.0] * 4, False),
    (["a"] * 40, [1.0] * 40, False),  # told before, of the texts
    ([["a", "b"]] * 40, [0.0] * 40, False),  # tags of words
])  # fmt: skip
def test_a_dense_model_no_better_than_one_answer_for_all_leaves_nothing_to_lose(labels, right, told):
    texts = [Text(str(i)) for i in range(40)]
    dense = Outcome(
        "text-classification", "accuracy", float(np.mean(right)), np.array(right), True, texts, labels, labels
    )
    found = compare(dense, dense, resamples=200)
    assert ("not surely better" in found.get("meaning", "")) is told
    if told and len(set(labels)) == 2:
        share = "95.0%" if labels[1] == "a" else "50.0%"
        assert f"'a' for all would give {share}" in found["meaning"]


def test_distributions_that_differ_by_rounding_are_not_nearer_than_equal_ones():
    generator = np.random.default_rng(0)
    texts = [Text(str(i)) for i in range(20)]
    first = generator.dirichlet(np.ones(3), 20)
    dense, cut = (
        Outcome(
            "made",
            "accuracy",
            1.0,
            np.ones(20),
            True,
            texts,
            [0] * 20,
            [0] * 20,
            probabilities=given.astype(np.float32),
        )
        for given in (first, first * (1 + 1.2e-7))
    )
    assert 0 <= compare(dense, cut, resamples=20)["against_dense"]["kl"] < 1e-12
    assert compare(dense, dense, resamples=20)["against_dense"]["kl"] == 0


def test_a_run_says_so_where_it_prints_its_numbers(tmp_path, capsys):
    model, texts = tiny_run.checkpoint(tmp_path / "model"), tiny_run.table(tmp_path / "texts.jsonl")
    swapped = {"no": "yes", "yes": "no"}
    words = ["prune", str(model), "-r", "random-baseline", "--output-dir", str(tmp_path / "run")]
    for change in tiny_run.settings(None, texts):
        words += ["--set", change]
    accuracy = []
    for more in (
        [],
        ["--set", f"task={json.dumps({'kind': 'text-classification', 'labels': swapped})}", "--overwrite"],
    ):
        assert main([*words, *more]) == 0
        said = " ".join(capsys.readouterr().err.split())
        found = json.loads((tmp_path / "run/accuracy.json").read_text())
        accuracy.append(found["dense"]["value"])
        assert (f"accuracy: {found.get('meaning')}" in said) is ("meaning" in found)
        assert ("meaning" in found) is (
            found["dense"]["low"] <= max(one["n"] for one in found["per_class"].values()) / found["n"]
        )
    assert sum(accuracy) == pytest.approx(1)  # so one of them at least is not above one half
