"""`headwise evaluate` and `headwise speed`: checkpoints judged and timed, alone, against another, as a gate."""

import json
import random
import shutil

import pytest
import torch
from transformers import BertForSequenceClassification

from headwise.analysis.errors import BadInput
from headwise.prune import load, run
from headwise.prune.cli import main
from headwise.prune.judgement import pair_of
from headwise.prune.recipe import Recipe
from headwise.prune.speed.operations import size_in_bytes
from tests.prune.tiny_run import WORDS, checkpoint, settings, table

GRID = ["--batches", "1,2", "--lengths", "8", "--rounds", "6", "--seconds", "4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    checkpoint(folder / "model")
    checkpoint(folder / "other", head=False)
    for file in checkpoint(folder / "mute").glob("tokenizer*"):
        file.unlink()
    table(folder / "texts.jsonl")
    told = Recipe.load(
        "gradient", settings(folder / "model", folder / "texts.jsonl", "limits={drop: 1, speedup: 0.01}")
    )
    run(told, output_dir=folder / "run")
    return folder


def ran(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def texts(place):
    return ["--texts", place / "texts.jsonl", "--label-column", "label"]


def test_a_run_is_judged_again_as_it_judged_itself(place, capsys):
    code, out, _ = ran(capsys, "evaluate", place / "run", "--json")
    assert code == 0
    found = json.loads(out)
    told = json.loads((place / "run" / "accuracy.json").read_text())
    told.pop("chance")  # the run's own baseline of random heads, which another judge has no plan for
    assert found["accuracy"] == told
    assert found["limits_broken"] == []
    code, _, err = ran(capsys, "evaluate", place / "run", "--set", "limits.drop=0")
    assert (code, "drop: at most 0 allowed" in err) == (3, True)


def test_all_limits_gate_an_evaluation(place, capsys):
    cut, dense = place / "run" / "checkpoint", place / "model"
    asked = ["--against", dense, *texts(place), "--set", "speed={batches: [1], lengths: [8], rounds: 3}"]
    share = size_in_bytes(load(cut)) / size_in_bytes(load(dense))
    code, out, _ = ran(capsys, "evaluate", cut, *asked, "--set", f"limits={{size: {share}, speedup: 0.001}}", "--json")
    found = json.loads(out)
    assert (code, found["limits_broken"]) == (0, [])
    assert found["bytes"]["cut"] == pytest.approx(share * found["bytes"]["dense"])
    assert found["speed"]["rows"][0]["ratio"]["median"] > 0.001
    code, _, err = ran(capsys, "evaluate", cut, *asked, "--set", "limits={size: 0.01, speedup: 999, drop: 0}")
    assert code == 3
    for said in ("size: at most 0.01", "speedup: at least 999x asked", "drop: at most 0 allowed"):
        assert said in err
    code, _, err = ran(capsys, "speed", cut, "--against", dense, *GRID, "--set", "limits.size=0.01")
    assert (code, "size: at most 0.01" in err) == (3, True)


def test_a_checkpoint_alone_has_a_value_and_its_interval(place, capsys):
    code, out, _ = ran(capsys, "evaluate", place / "model", *texts(place), "--json")
    accuracy = json.loads(out)["accuracy"]
    assert code == 0
    assert set(accuracy) == {"schema", "kind", "metric", "higher_is_better", "n", "rows", "skipped", "dense"}
    told = json.loads((place / "run" / "accuracy.json").read_text())
    assert accuracy["dense"] == told["dense"]


def test_two_checkpoints_are_compared_on_the_same_texts(place, capsys):
    cut = place / "run" / "checkpoint"
    code, out, _ = ran(capsys, "evaluate", cut, "--against", place / "model", *texts(place), "--json")
    assert code == 0
    assert json.loads(out)["accuracy"]["cut"]["value"] == pytest.approx(
        json.loads((place / "run" / "accuracy.json").read_text())["cut"]["value"]
    )
    code, out, _ = ran(capsys, "evaluate", cut, "--against", cut, *texts(place))
    assert code == 0
    assert "0 lost, 0 gained" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "MODEL", "--texts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["evaluate", "MODEL", "--task", "magic"], "magic"),
        (["evaluate", "nowhere"], "nowhere"),
        (["speed", "MODEL", "--batches", "1;8"], "--batches"),
        (["speed", "MODEL", "--batches", "0"], "speed.batches"),
        (["speed", "MODEL", "--kernel", "magic"], "kernel 'magic' cannot be used"),
        (["speed", "MODEL", "--against", "OTHER"], "only models of one class"),
        (["evaluate", "OTHER", "--against", "MODEL"], "only models of one class"),
        (["evaluate", "MUTE"], "knows no words"),
    ],
)
def test_bad_input_is_said_in_a_line(words, message, place, capsys):
    code, out, err = ran(capsys, *(place / word.lower() if word.isupper() else word for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_speed_against_another(place, capsys):
    cut = place / "run" / "checkpoint"
    code, out, _ = ran(capsys, "speed", cut, "--against", place / "model", *GRID, "--threads", "1", "--json")
    assert code == 0
    speed = json.loads(out)["speed"]
    assert [(row["batch"], row["length"]) for row in speed["rows"]] == [(1, 8), (2, 8)]
    assert all(row["operation_ratio"] > 1 for row in speed["rows"])
    assert speed["attention"]["operation_ratio"] > speed["rows"][1]["operation_ratio"]
    assert speed["memory"]["cut"] <= speed["memory"]["dense"]
    assert speed["threads"] == 1


def test_a_run_is_timed_against_its_dense_model_and_held_to_its_limits(place, capsys):
    code, out, _ = ran(capsys, "speed", place / "run", *GRID)
    assert code == 0
    assert "attention blocks alone" in out
    assert "operations predict" in out
    code, _, err = ran(capsys, "speed", place / "run", *GRID, "--set", "limits.speedup=1000", "--quiet")
    assert (code, "speedup: at least 1000x asked" in err) == (3, True)


def test_a_checkpoint_alone_and_another_kernel(place, capsys):
    before = torch.get_num_threads()
    code, out, _ = ran(capsys, "speed", place / "model", *GRID, "--kernel", "eager", "--threads", "2", "--json")
    speed = json.loads(out)["speed"]
    assert (code, speed["kernel"], speed["threads"]) == (0, "eager", 2)
    assert speed["parameters"]["dense"] == speed["parameters"]["cut"]
    assert torch.get_num_threads() == before
    code, out, _ = ran(capsys, "speed", place / "model", *GRID)
    assert code == 0
    assert "faster" not in out


def test_what_a_folder_means(place, tmp_path):
    pair = pair_of(str(place / "run"))
    assert pair.model == str(place / "run" / "checkpoint")
    assert pair.against == str(place / "model")
    assert pair_of(str(place / "run" / "checkpoint")).against is None
    (tmp_path / "recipe.yaml").write_text((place / "run" / "recipe.yaml").read_text())
    with pytest.raises(BadInput, match="a run without a checkpoint"):
        pair_of(str(tmp_path))


@pytest.mark.parametrize("recipe", [None, "quickstart"])
def test_a_revision_that_is_asked_for_is_that_of_the_model_that_is_judged(recipe):
    pair = pair_of("some/model", "dense/model", recipe, ["model.revision=v2"])
    assert (pair.revision("some/model"), pair.revision("dense/model")) == ("v2", None)


def test_a_run_of_a_model_in_memory_names_it(place, tmp_path):
    from tests.prune.tiny_run import tokenizer

    model = load(place / "model", cls=BertForSequenceClassification)
    told = Recipe.load("random-baseline", settings(None, place / "texts.jsonl"))
    run(told, model, tokenizer=tokenizer(), output_dir=tmp_path / "run")
    assert pair_of(str(tmp_path / "run")).against == str(place / "model")


def named(path, rows, columns=("said", "truth")):
    """Labelled texts in columns whose names nobody guesses; every second has the other label."""
    told = [" ".join(random.Random(i).choices(WORDS, k=6)) for i in rows]
    pairs = [(said, ["no", "yes"][i % 2]) for i, said in enumerate(told)]
    lines = [json.dumps(dict(zip(columns, pair, strict=True))) for pair in pairs]
    path.write_text("\n".join(lines))
    return path


def test_a_run_is_judged_on_other_texts_in_its_own_columns(place, tmp_path, capsys):
    """Whether its recipe names an evaluation or not; its own texts make the task ready."""
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    first, second = named(tmp_path / "first.jsonl", range(100, 140)), named(tmp_path / "second.jsonl", range(200, 230))
    other = named(tmp_path / "other.jsonl", range(300, 317))
    columns = '{"text": "said", "label": "truth", "source": '
    with_both = ["--set", f'data.evaluation={columns}"{second}"}}', "--set", f'data.calibration={columns}"{first}"}}']
    without = ["--set", "data.evaluation=null", *with_both[2:]]
    for more in (with_both, without):
        code, out, _ = ran(capsys, "evaluate", folder, *more, "--texts", other, "--json")
        found = json.loads(out)
        assert code == 0
        assert found["accuracy"]["n"] == 17
        assert found["texts"]["evaluation"]["source"] == str(other)
        assert found["texts"]["calibration"]["source"] == str(first)
        assert found["accuracy"]["kind"] == "text-classification"
    code, _, err = ran(capsys, "evaluate", folder, *with_both, "--texts", other, "--label-column", "nothing")
    assert (code, "nothing" in err) == (2, True)
    plain = named(tmp_path / "plain.jsonl", range(400, 409), ("text", "label"))
    words = ["--texts", plain, "--text-column", "text", "--label-column", "label", "--json"]
    code, out, _ = ran(capsys, "evaluate", folder, *with_both, *words)
    assert (code, json.loads(out)["accuracy"]["n"]) == (0, 9)


def test_the_texts_of_a_run_are_split_as_they_were(place, capsys):
    code, out, _ = ran(capsys, "evaluate", place / "run", "--texts", place / "texts.jsonl", "--json")
    told = json.loads((place / "run" / "accuracy.json").read_text())
    assert code == 0
    assert json.loads(out)["accuracy"]["dense"] == told["dense"]
