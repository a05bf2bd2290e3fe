"""What a user gets wrong: one message that says what to do, before anything is written, and nothing left behind."""

import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MllamaConfig, MllamaForConditionalGeneration

from headwise.analysis.corpus.reading import read_source
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.sites import find_sites
from headwise.prune import load
from headwise.prune.cli import main
from headwise.prune.cli.app import app
from headwise.prune.forecast.reached import require_loss, require_reached
from headwise.prune.growth import growth
from headwise.prune.importance import SCORES
from headwise.prune.recipe import Recipe
from headwise.prune.tasks.overlong import overlong
from tests.prune.tiny_run import checkpoint, settings, table, tokenizer

FAST = ["score={kind: magnitude}", "compensate.kind=none", "speed.seconds=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two checkpoints – a classifier and a language model with grouped queries – and labelled texts."""
    folder = tmp_path_factory.mktemp("place")
    checkpoint(folder / "bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 44}
    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24}
    LlamaForCausalLM(LlamaConfig(**sizes, **grouped, pad_token_id=0)).save_pretrained(folder / "llama")
    tokenizer().save_pretrained(folder / "llama")
    table(folder / "texts.jsonl")
    return folder


@pytest.fixture
def there(place, tmp_path, monkeypatch):
    """The same, from an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture(scope="module")
def finished(place):
    """A finished run."""
    folder = place / "run"
    changes = [part for change in _changes(place, *FAST) for part in ("--set", change)]
    assert main(["prune", str(place / "bert"), "-r", "quickstart", *changes, "--output-dir", str(folder), "-q"]) == 0
    return folder


def _changes(place, *more):
    return settings(None, place / "texts.jsonl", *more)


def ran(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def set_all(*changes):
    return [part for change in changes for part in ("--set", change)]


def test_single_heads_of_groups_that_make_a_model_grow_are_told_with_numbers(there, capsys, tmp_path, caplog):
    model = load(there / "llama")
    sites = find_sites(model)
    assert growth(model, sites, {"0": [0, 1]}) == ""
    told = growth(model, sites, {"0": [0]})
    assert told.startswith("groups of unequal size are left in 0: 2 key/value heads become 3 by repeating")
    # What one site repeats another may give back.
    assert growth(model, sites, {"0": [0], "1": [2, 3]}) == ""
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 1, "remove": {"0": [0], "1": [0]}}))
    assert ran(capsys, "cut", there / "llama", tmp_path / "plan.json", "--output-dir", tmp_path / "cut")[0] == 0
    assert "4 key/value heads become 6 by repeating, and the model GROWS: its cache by 50.0%" in caplog.text
    caplog.clear()
    assert ran(capsys, "cut", there / "llama", tmp_path / "plan.json", "--output-dir", tmp_path / "two", "-q")[2] == ""
    assert not caplog.records


def test_texts_beyond_the_window_are_counted_and_told_once(there, caplog):
    model, read = load(there / "bert"), tokenizer()
    corpus = Corpus([Text("w1 " * words) for words in (3, 22, 23, 40)])
    with caplog.at_level(logging.WARNING, "headwise"):
        assert overlong(model, read, {"calibration": corpus, "evaluation": corpus}) == {
            "calibration": 2,
            "evaluation": 2,
        }
    assert [record.getMessage() for record in caplog.records] == [
        "texts longer than the 24 tokens that the model reads are cut off there: 2 of 4 calibration texts, "
        "2 of 4 evaluation texts"
    ]
    caplog.clear()
    # Asked for, it is counted and no surprise; read in windows, nothing is cut off.
    assert overlong(model, read, {"calibration": corpus}, max_length=8) == {"calibration": 3}
    assert overlong(load(there / "llama"), read, {"evaluation": corpus}) == {}
    assert not caplog.records


def test_a_run_says_how_many_texts_were_cut_off(finished):
    texts = json.loads((finished / "environment.json").read_text())["texts"]
    assert (texts["calibration"]["truncated"], texts["evaluation"]["truncated"]) == (0, 0)
    assert "texts evaluation truncated" in (finished / "report.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "bert", "--roles", "nonsense"],
        ["analyze", "bert", "--texts", "/dev/null"],
        ["analyze", "bert", "--output-dir", "a/b/c", "--roles", "nonsense"],
        ["prune", "bert", "-r", "quickstart", "--set", "task.kind=causal-lm"],
        ["prune", "bert", "-r", "quickstart", "--set", "remove.heads=300"],
        ["prune", "bert", "-r", "quickstart", "--output-dir", "a/b", "--calibration", "none.csv"],
        ["plan", "bert", "-r", "quickstart", "-o", "a/plan.json", "--set", "remove.heads=300"],
        ["cut", "bert", "bad.json", "--output-dir", "a/b"],
        ["sweep", "bert", "-r", "quickstart", "--budgets", "0.99", "--output-dir", "a/b"],
        ["evaluate", "bert", "--texts", "none.csv"],
        ["speed", "bert", "--kernel", "nonsense", "--rounds", "3"],
        ["export", "./none", "a/b.onnx"],
        ["heads", "bad.json"],
        ["rescue", "bert", "a/b"],
        ["report", "bert", "bert", "--output-dir", "a"],
        ["view", "bert", "--text", "w1 w2", "--head", "9.9"],
    ],
)
def test_nothing_is_left_behind_by_what_is_refused(there, capsys, tmp_path, words):
    named = {name: str(there / name) for name in ("bert",)}
    (tmp_path / "bad.json").write_text('{"schema": 1, "remove": {"0": [99]}}')
    code, out, err = ran(capsys, *[named.get(word, word) for word in words])
    assert (code, out) == (2, ""), err
    assert err.count("headwise: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


def test_every_option_says_what_it_takes():
    from typer.main import get_command

    readme = (Path(__file__).parents[2] / "README.md").read_text()

    def verbs(command, name=""):
        for part, inner in getattr(command, "commands", {}).items():
            yield from verbs(inner, f"{name} {part}")
        if not hasattr(command, "commands"):
            yield name, command

    for name, verb in verbs(get_command(app)):
        assert verb.help.rstrip().endswith("."), name
        for option in verb.params:
            if option.name == "help":
                continue
            assert option.help, (name, option.name)
            assert option.help.endswith("."), (name, option.name)
            shown = any(mark in option.help for mark in (":", "such as", "; ", "MODEL", "recipe", "folder", "Folder"))
            told = any(word in readme for word in option.opts)
            assert told or shown or getattr(option, "is_flag", False), (name, option.opts, option.help)


def test_a_device_or_pipe_is_read_like_a_file():
    with pytest.raises(ValueError, match=r"^/dev/null: no text in it; expected a text a line$"):
        read_source("/dev/null")


def test_sites_that_texts_do_not_reach_are_told_with_what_to_do(there):
    text = {
        "vocab_size": 44, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 24, "cross_attention_layers": [1], "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "attention_heads": 4, "num_hidden_layers": 1, "num_global_layers": 1, "intermediate_size": 32,
        "vision_output_dim": 64, "image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0],
    }  # fmt: skip
    model = MllamaForConditionalGeneration(
        MllamaConfig(vision_config=vision, text_config=text, image_token_index=4)
    ).eval()
    texts = Corpus([Text("w1 w2")])
    with pytest.raises(
        BadInput, match=r"3 of 4 sites are not reached by these texts: .*text.cross.1.*headwise cut MODEL"
    ):
        require_reached(model, tokenizer(), find_sites(model), texts)
    llama = load(there / "llama")
    assert require_reached(llama, tokenizer(), find_sites(llama), texts) is None


def test_a_loss_that_the_model_does_not_give_is_refused_before_anything_is_measured(there, capsys, tmp_path):
    bare = checkpoint(tmp_path / "bare", head=False)
    for kind in ("gates", "combined"):
        asked = ["--set", f"score={{kind: {kind}, loss: predictions}}", "--output-dir", str(tmp_path / "out")]
        more = [word for setting in settings(bare, there / "texts.jsonl") for word in ("--set", setting)]
        assert main(["prune", str(bare), "--recipe", "quickstart", *more, *asked]) == 2
        assert capsys.readouterr().err.count("BertModel predicts nothing (no logits); use loss: outputs") == 1
        assert not list(tmp_path.glob("out*"))
    texts = Corpus([Text("w1 w2")])
    for score in (SCORES["gates"](loss="outputs"), SCORES["gates"](), SCORES["magnitude"]()):
        assert require_loss(load(bare), tokenizer(), score, texts) is None


def test_a_dry_run_refuses_what_the_run_would(there, capsys, tmp_path):
    def dry(*more):
        return ran(capsys, "prune", there / "bert", "-r", "quickstart", "--dry-run", *set_all(*_changes(there)), *more)

    code, out, _ = dry("--json")
    found = json.loads(out)
    assert (code, found["task"], found["texts"]) == (
        0,
        "embedding-probe",
        {"calibration": 32, "evaluation": 32},
    )
    # Agreement runs the model to make itself ready: that far a dry run does not go.
    assert json.loads(dry("--json", "--set", "task.kind=agreement")[1])["task"] == "agreement"
    for more, words in (
        (["--set", "task.kind=causal-lm"], "is no causal language model"),
        (["--set", "data.calibration.label=nonsense"], "no column 'nonsense'"),
        (["--output-dir", there / "llama"], "exists"),
        (["--output-dir", there / "bert"], "holds the model that is read"),
    ):
        code, out, err = dry(*more)
        assert (code, out) == (2, "")
        assert words in err
    assert list(tmp_path.iterdir()) == []


def test_no_run_is_written_into_another_nor_over_its_model(there, finished, capsys, tmp_path):
    plan = finished / "plan.json"
    before = sorted(str(path) for path in finished.rglob("*"))
    for words in (
        ["prune", there / "bert", "--output-dir", finished / "more"],
        ["prune", there / "bert", "--output-dir", finished / "more", "--dry-run"],
        ["analyze", there / "bert", "--output-dir", finished / "a" / "b"],
        ["sweep", there / "bert", "-r", "quickstart", "--budgets", "0.2", "--output-dir", finished / "more"],
        ["cut", there / "bert", plan, "--output-dir", finished / "more"],
        ["report", finished, finished, "--output-dir", finished],
        ["export", finished, finished / "native", "--to", "native"],
        ["rescue", there / "bert", finished / "more"],
    ):
        code, _, err = ran(capsys, *words)
        assert code == 2
        assert "a run's own folder; choose an output folder outside of it" in err
    for words in (
        ["prune", there / "bert", "--output-dir", there / "bert", "--overwrite"],
        ["prune", finished / "checkpoint", "--output-dir", finished, "--overwrite"],
        ["cut", there / "bert", plan, "--output-dir", there / "bert", "--overwrite"],
        ["export", there / "bert", there / "bert", "--to", "native", "--overwrite"],
        ["export", finished, finished, "--to", "native", "--overwrite"],
        ["rescue", there / "bert", there / "bert", "--allow-pickle", "--overwrite"],
    ):
        code, _, err = ran(capsys, *words)
        assert code == 2
        assert "holds the model that is read" in err
    assert sorted(str(path) for path in finished.rglob("*")) == before


def test_no_option_is_taken_without_effect(there, finished, capsys):
    for words, told in (
        (["report", finished, "--output-dir", "a"], "--output-dir is where several runs are compared"),
        (["report", finished, "--device", "cpu"], "--device and --trust-remote-code go with --verify"),
        (["report", finished, "--trust-remote-code"], "--device and --trust-remote-code go with --verify"),
        (["report", finished, "--verify", "--output-dir", "a"], "--output-dir is where several runs are compared"),
        (["evaluate", finished, "--label-column", "label"], "columns go with --texts"),
        (["analyze", there / "bert", "--text-column", "text"], "which has none; leave it out"),
    ):
        code, out, err = ran(capsys, *words)
        assert (code, out) == (2, ""), words
        assert told in err


def test_a_drop_out_of_reach_keeps_what_was_measured_for_another(there, capsys, tmp_path, caplog):
    def reach(drop, *more):
        changes = set_all(*_changes(there, *FAST, f"reach.drop={drop}"))
        return ran(capsys, "prune", there / "bert", "-r", "quickstart", *changes, "--output-dir", "out", *more)

    assert reach(0)[0] == 2
    assert "out.partial; --resume goes on from there, also with another budget, reach or keep-rule" in caplog.text
    measured = Evidence.load(tmp_path / "out.partial" / "evidence")["statistics/entropy"]
    assert ran(capsys, "report", "out.partial")[2].startswith("out.partial is not finished: plan.json, proof.json, ")
    assert "differs from what is asked now" in reach(0.9, "--resume", "--seed", 3)[2]
    assert "resume it by its own name" in ran(
        capsys, "prune", there / "bert", "--resume", "--output-dir", "out.partial"
    )[2]  # fmt: skip
    code, _, err = reach(1.0, "--resume", "-q")
    assert (code, err) == (0, "")
    assert (Evidence.load(tmp_path / "out" / "evidence")["statistics/entropy"] == measured).all()
    assert Recipe.load(tmp_path / "out" / "recipe.yaml").reach.drop == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
