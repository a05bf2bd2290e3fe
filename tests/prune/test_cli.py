"""The commands: exit codes, one clear message, quick help, nothing raw on the terminal."""

import errno
import inspect
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file
from transformers import AlbertConfig, AutoTokenizer, BertConfig, BertForMaskedLM, BertModel, LlamaConfig

from headwise.analysis.errors import BadInput, ProofFailed
from headwise.analysis.evidence import Evidence
from headwise.prune import cut, save
from headwise.prune.checkpoint.configuration import where_is
from headwise.prune.cli import heads as heads_verb
from headwise.prune.cli import main
from headwise.prune.cli.app import app
from headwise.prune.cli.faults import explain
from headwise.prune.cli.heads import map_bytes
from headwise.prune.inspection import run_folder
from headwise.prune.recipe import Recipe
from headwise.prune.recipe_errors import printable
from headwise.prune.shipped import shipped

PROGRAM = [sys.executable, "-c", "import sys; from headwise.prune.cli import main; sys.exit(main())"]
EVIL = "\x1b[31mred[bold]\x07\u202e"


def ran(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments, code=2):
    got, out, err = ran(capsys, *arguments)
    assert got == code, err
    assert out == ""
    assert err.startswith("headwise: ")
    assert "Traceback" not in err
    assert err.count("headwise: ") == 1
    assert all(printable(line, 10**6) == line for line in err.split("\n"))
    return err


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    BertConfig(
        num_hidden_layers=3, num_attention_heads=4, hidden_size=32, architectures=["BertForMaskedLM"]
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path):
    """A finished run of two sites of four heads; heads 0.1 and 1.3 are gone."""
    return written_run(tmp_path / "run")


def written_run(folder, drop=0.01, ratio=1.2):
    heads = [[site, head] for site in ("0", "1") for head in range(4)]
    evidence = folder / "evidence"
    evidence.mkdir(parents=True)
    save_file({"importance/random": np.arange(8.0)}, evidence / "arrays.safetensors")
    files = {
        "evidence/evidence.json": {"schema": 1, "heads": heads, "facts": {}},
        "plan.json": {"schema": 1, "model": EVIL, "remove": {"0": [1], "1": [3]}},
        "environment.json": {"schema": 1, "model": {"id": EVIL, "class": "BertModel"}},
        "accuracy.json": {
            "metric": "accuracy",
            "higher_is_better": True,
            "dense": {"value": 0.8, "low": 0.75, "high": 0.85},
            "cut": {"value": 0.8 - drop, "low": 0.74, "high": 0.84},
            "drop": drop,
            "interval": [drop - 0.02, drop + 0.02],
            "upper": drop + 0.017,
            "p": 0.4,
            "n": 400,
        },
        "speed.json": {
            "rows": [
                {
                    "batch": 8,
                    "length": 128,
                    "dense_ms": {"median": 30.0, "low": 29.0, "high": 31.0},
                    "cut_ms": {"median": 30.0 / ratio, "low": 24.0, "high": 26.0},
                    "ratio": {"median": ratio, "low": ratio - 0.03, "high": ratio + 0.03},
                    "operation_ratio": 1.226,
                    "significant": True,
                }
            ],
            "parameters": {"dense": 1000, "cut": 900},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    recipe = Recipe.from_text("schema: 1\nscore: {kind: random}\nlimits: {drop: 0.05, speedup: 1.1}")
    (folder / "recipe.yaml").write_text(recipe.resolved_yaml())
    return folder


# --- the program ---------------------------------------------------------------------------------------


def test_help_loads_nothing_that_takes_longer_than_half_a_second():
    done = subprocess.run([*PROGRAM, "--help"], capture_output=True, text=True, check=True)
    for verb in ("analyze", "prune", "report", "heads", "recipes", "demo"):
        assert verb in done.stdout
    loaded = "import sys; from headwise.prune.cli import main; main(['prune', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "scipy", "sklearn", "ruamel.yaml", "datasets"}
    assert not heavy & set(done.stdout.splitlines()[-1].split())


def test_version_and_bare_call(capsys):
    assert ran(capsys, "--version")[:2] == (0, "headwise 0.1.0\n")
    code, out, _ = ran(capsys)
    assert code == 0
    assert "Usage: headwise" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["heads"],
        ["heads", "x", "--nonsense"],
        ["heads", "x", "--batch-size", "0", "--max-length", "8"],
        ["heads", "x", "--batch-size", "many"],
        ["prune", "x", "--label-column", "y"],
        ["analyze", "x", "--dtype", "float8"],
        ["analyze", "x", "--texts", "a", "--dataset", "b"],
        ["analyze", "x", "--split", "train"],
        ["prune", "x", "-r", "quickstart", "--resume"],
        ["recipes", "nonsense"],
        ["report"],
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(capsys, arguments):
    refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BadInput("no such thing"), 2, "no such thing"),
        (ProofFailed("gate and cut differ"), 1, "gate and cut differ"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), 2, "the disk is full (writing /a/b)"),
        (RuntimeError("Error while serializing: I/O error: No space left on device"), 2, "the disk is full"),
        (RuntimeError("serializing: I/O error: Disk quota exceeded (os error 122)"), 2, "the disk quota is used up"),
        (
            RuntimeError("serializing: I/O error: File too large (os error 27)"),
            2,
            "a file would be larger than allowed",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), 2, "/a/b: Permission denied"),
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("broken"), 1, "internal fault: RuntimeError: broken"),
        (KeyError("x"), 1, "internal fault: KeyError: 'x'"),
        (BadInput(f"name {EVIL}"), 2, "\\x1b[31mred[bold]\\x07\\u202e"),
    ],
)
def test_every_exception_becomes_one_message_and_its_code(capsys, monkeypatch, error, code, words):
    def fail(*_, **__):
        raise error

    monkeypatch.delenv("HEADWISE_DEBUG", raising=False)
    monkeypatch.setattr(heads_verb, "outline", fail)
    message = refused(capsys, "heads", "x", code=code)
    assert words in message
    assert ("HEADWISE_DEBUG=1" in message) == ("internal fault" in message)


def test_a_full_disk_is_seen_behind_other_errors():
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as cause:
            raise RuntimeError("could not save") from cause
    except RuntimeError as error:
        message, code = explain(error)
    assert code == 2
    assert "disk is full" in message


def test_a_full_disk_names_what_was_written_not_what_was_copied():
    message, _ = explain(OSError(errno.ENOSPC, "No space left on device", "from.json", None, "to.json"))
    assert "(writing to.json)" in message


def test_interrupted_is_130(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(heads_verb, "outline", interrupt)
    assert refused(capsys, "heads", "x", code=130) == "headwise: interrupted\n"


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug_shows_the_traceback(capsys, monkeypatch, how):
    def fail(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setenv("HEADWISE_DEBUG", "1" if how == "variable" else "0")
    monkeypatch.setattr(heads_verb, "outline", fail)
    options = ["--debug"] if how == "option" else []
    code, _, err = ran(capsys, *options, "heads", "x")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize("words", [["recipes", "show", "quickstart"], ["families"]], ids=["short", "long"])
def test_a_closed_pipe_is_no_error(words):
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0


# --- heads ---------------------------------------------------------------------------------------------


def test_heads_reads_the_configuration_alone(capsys, bert):
    assert not list(bert.glob("*.safetensors"))
    code, out, err = ran(capsys, "heads", bert)
    assert (code, err) == (0, "")
    assert "0 … 2" in out
    assert "BertForMaskedLM, 12 heads in 3 sites" in out


def test_heads_as_json_with_the_size_of_the_maps(capsys, bert):
    code, out, _ = ran(capsys, "heads", bert, "--batch-size", 8, "--max-length", 64, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["heads"], found["heads_dense"], len(found["sites"])) == (12, 12, 3)
    assert found["maps"]["bytes"] == map_bytes(12, 8, 64) == 4 * 12 * 8 * 64 * 64
    assert found["sites"][1]["kept"] == [0, 1, 2, 3]


def test_heads_tells_grouped_queries_and_shared_layers(capsys, tmp_path):
    LlamaConfig(
        num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, hidden_size=64, intermediate_size=64
    ).save_pretrained(tmp_path / "llama")
    assert "4 query heads share a key/value head" in ran(capsys, "heads", tmp_path / "llama")[1]
    AlbertConfig(
        num_hidden_layers=3, num_attention_heads=4, hidden_size=32, intermediate_size=32, embedding_size=16
    ).save_pretrained(tmp_path / "albert")
    assert "they share one module" in ran(capsys, "heads", tmp_path / "albert")[1]


def test_heads_of_a_cut_checkpoint_are_those_that_are_left(capsys, tmp_path):
    config = BertConfig(num_hidden_layers=3, num_attention_heads=4, hidden_size=32, intermediate_size=32)
    save(cut(BertForMaskedLM(config), {"0": [0, 2], "1": [0, 1, 2, 3]}), tmp_path / "cut")
    found = json.loads(ran(capsys, "heads", tmp_path / "cut", "--json")[1])
    assert [site["kept"] for site in found["sites"]] == [[1, 3], [], [0, 1, 2, 3]]
    out = ran(capsys, "heads", tmp_path / "cut")[1]
    assert "2 of 4" in out
    assert "6 heads (6 of 12 are gone already)" in out


def test_heads_of_a_checkpoint_that_transformers_4_pruned(capsys, bert):
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"pruned_heads": {"1": [0, 3]}}))
    found = json.loads(ran(capsys, "heads", bert, "--json")[1])
    assert [site["kept"] for site in found["sites"]] == [[0, 1, 2, 3], [1, 2], [0, 1, 2, 3]]


def test_heads_of_nothing_is_refused(capsys, tmp_path):
    assert "no such folder" in refused(capsys, "heads", tmp_path / f"none{EVIL}")
    assert "no config.json" in refused(capsys, "heads", tmp_path)
    (tmp_path / "config.json").write_text("{")
    refused(capsys, "heads", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows-it"}')
    assert "nobody-knows-it" in refused(capsys, "heads", tmp_path)
    assert "needs both" in refused(capsys, "heads", "embedded", "--batch-size", "8")


def commands(group, *before):
    """Every command that the program knows: its words, and itself."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield (*before, name), command


def test_every_command_is_silent_if_told_and_gives_json_if_asked():
    """But for those that print a file as it is, to be sent into one."""
    shared = {}
    for words, command in commands(typer.main.get_command(app)):
        found = {tuple(parameter.opts): parameter.help for parameter in command.params}
        shared[words] = {opts: told for opts, told in found.items() if {"--json", "--quiet"} & set(opts)}
    assert [words for words, found in shared.items() if not found] == [("recipes", "show"), ("recipes", "schema")]
    told = [found for found in shared.values() if found]
    assert set(told[0]) == {("--json",), ("--quiet", "-q")}
    assert all(found == told[0] for found in told), shared


def test_quiet_is_silent(capsys, bert):
    for words in (("heads", bert), ("families",), ("recipes", "list"), ("recipes", "check", "quickstart")):
        assert ran(capsys, *words, "--quiet") == (0, "", "")
        code, out, err = ran(capsys, *words, "--quiet", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)


# --- recipes -------------------------------------------------------------------------------------------


def test_recipes_are_listed_shown_and_checked(capsys):
    code, out, _ = ran(capsys, "recipes", "list")
    assert code == 0
    assert all(name in out for name in shipped())
    listed = json.loads(ran(capsys, "recipes", "list", "--json")[1])
    assert [recipe["name"] for recipe in listed] == shipped()
    text = ran(capsys, "recipes", "show", "quickstart")[1]
    assert Recipe.from_text(text) == Recipe.load("quickstart")
    assert ran(capsys, "recipes", "check", *shipped())[0] == 0
    assert json.loads(ran(capsys, "recipes", "schema")[1])["title"] == "Headwise recipe"


def test_check_tells_all_mistakes_of_all_files(capsys, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("schema: 1\nscore: {kind: gradeint}\nsede: 1\n")
    code, out, err = ran(capsys, "recipes", "check", tmp_path / "a.yaml", "quickstart", tmp_path / "b.yaml")
    assert code == 2
    assert out == "quickstart: no mistakes\n"
    assert "a.yaml:2: score" in err
    assert "b.yaml:3: sede: unknown field; did you mean 'seed'?" in err
    assert ran(capsys, "recipes", "check", "quickstart", "--set", "seed=x")[0] == 2
    assert ran(capsys, "recipes", "check", "quickstart", "--quiet") == (0, "", "")
    code, out, again = ran(capsys, "recipes", "check", tmp_path / "a.yaml", "quickstart", "--json")
    bad, good = json.loads(out)
    assert (code, good) == (2, {"recipe": "quickstart", "mistakes": []})
    assert [line in err and line in again for line in bad["mistakes"]] == [True] * 2, bad
    refused(capsys, "recipes", "show", "nobody")


# --- analyze -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A whole checkpoint of random weights, with a real tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    config = BertConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=16)
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(where_is("embedded")).save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"The {n} dogs saw the cat, and it ran away from them.\n" for n in range(40)))
    return path


def test_analyze_writes_evidence_and_a_report(capsys, tiny, texts, tmp_path):
    target = tmp_path / "out"
    arguments = ["analyze", tiny, "--texts", texts, "--max-samples", 20, "--max-length", 16, "--output-dir", target]
    code, out, err = ran(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    roles = {row["role"]: row["answer"] for row in said.pop("roles")}
    assert said == {"run": str(target), "report": str(target / "report.html")}
    assert roles["coreference"] in ("none", "not applicable")
    assert len(roles) > 15
    evidence = Evidence.load(target / "evidence")
    assert evidence.heads == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    assert evidence["statistics/entropy"].shape == (4,)
    made = json.loads((target / "environment.json").read_text())
    assert made["texts"]["calibration"]["count"] == 20
    assert made["model"]["class"] == "BertModel"
    before = (target / "environment.json").read_bytes()
    assert "exists" in refused(capsys, *arguments)
    assert (target / "environment.json").read_bytes() == before
    assert ran(capsys, *arguments, "--overwrite", "--quiet") == (0, "", "")
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_analyze_leaves_nothing_behind_when_the_disk_is_full(capsys, tiny, texts, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Evidence, "save", full)
    arguments = ["analyze", tiny, "--texts", texts, "--max-samples", 8, "--max-length", 16]
    message = refused(capsys, *arguments, "--output-dir", tmp_path / "out")
    assert "space" in message or "full" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_analyze_refuses_what_it_cannot_read(capsys, tiny, tmp_path):
    target = ["--output-dir", tmp_path / "out"]
    refused(capsys, "analyze", tiny, "--texts", tmp_path / "none.csv", *target)
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    assert "nonsense" in refused(capsys, "analyze", tiny, "--texts", table, "--text-column", "nonsense", *target)
    assert "nonsense" in refused(capsys, "analyze", tiny, "--device", "nonsense", *target)
    assert not (tmp_path / "out").exists()


# --- report --------------------------------------------------------------------------------------------


def test_report_is_rebuilt_from_the_folder_alone(capsys, run):
    code, out, err = ran(capsys, "report", run)
    assert (code, err) == (0, f"{run} is not finished: proof.json, checkpoint are missing\n")
    assert out == f"report: {run / 'report.html'}\n"
    assert (run / "report.html").is_file()


def test_several_runs_are_compared(capsys, tmp_path):
    runs = [written_run(tmp_path / "one"), written_run(tmp_path / "two", drop=0.03)]
    code, out, _ = ran(capsys, "report", *runs, "--output-dir", tmp_path / "both", "--json")
    assert code == 0
    assert all(Path(path).is_file() for path in json.loads(out).values())


def test_report_of_no_run_is_refused(capsys, tmp_path):
    assert "no such folder" in refused(capsys, "report", tmp_path / "none")
    refused(capsys, "report", tmp_path)


# --- prune ---------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(monkeypatch, run):
    """The pipeline as a double that remembers how it was called."""
    double = types.ModuleType("headwise.prune.pipeline")
    double.calls = []

    def finish(recipe, **options):
        double.calls.append((recipe, options))
        return types.SimpleNamespace(folder=run)

    double.run = double.dry_run = finish
    monkeypatch.setitem(sys.modules, "headwise.prune.pipeline", double)
    return double


def test_prune_hands_the_recipe_and_its_changes_on(capsys, pipeline, run):
    arguments = ["prune", 'a "b": c', "--recipe", "redundancy", "--set", "remove.heads=2", "--set", "seed=1"]
    code, out, _ = ran(capsys, *arguments, "--seed", 7, "--dtype", "bfloat16", "--output-dir", "x", "--overwrite")
    assert code == 0
    recipe, options = pipeline.calls[0]
    assert recipe.model.id == 'a "b": c'
    assert (recipe.remove.heads, recipe.remove.fraction) == (2, None)
    assert (recipe.seed, recipe.model.dtype) == (7, "bfloat16")
    assert options["output_dir"] == Path("x")
    assert options["overwrite"] is True
    assert options["trust_remote_code"] is False
    assert out.endswith(f"run: {run}\nreport: {run / 'report.html'}\n")


def test_the_demo_goes_on_where_an_interrupted_one_is_named(capsys, pipeline):
    assert ran(capsys, "demo", "--output-dir", "x", "--resume")[0] == 0
    assert pipeline.calls[0][1]["resume"] is True
    code, _, err = ran(capsys, "demo", "--resume")
    assert code == 2
    assert "--output-dir of the interrupted run" in err


def test_the_table_at_the_end_says_cost_and_gain_with_their_intervals(capsys, pipeline):
    out = ran(capsys, "demo")[1]
    assert pipeline.calls[0][0] == Recipe.load("quickstart")
    for words in (
        "2 removed",
        "80.0 %",
        "79.0 %",
        "drop 1.0 (−1.0 to 3.0) points",
        "cannot exclude a drop of 2.7 points",
        "1.20× (1.17× to 1.23×)",
        "predict 1.23×",
    ):
        assert words in out
    assert "\x1b" not in out


def test_prune_for_machines_and_for_nobody(capsys, pipeline):
    code, out, err = ran(capsys, "prune", "m", "-r", "redundancy", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["heads"] == {"dense": 8, "removed": 2}
    assert ran(capsys, "prune", "m", "-r", "redundancy", "--quiet") == (0, "", "")


def test_broken_limits_are_exit_code_3(capsys, pipeline, run):
    accuracy = json.loads((run / "accuracy.json").read_text())
    (run / "accuracy.json").write_text(json.dumps(accuracy | {"upper": 0.06}))
    code, out, err = ran(capsys, "prune", "m", "-r", "redundancy")
    assert code == 3
    assert "run:" in out
    assert "limits broken: drop at most 5.0 points; the drop that the data cannot exclude: 6.0 points" in err


def test_prune_refuses_before_anything_runs(capsys, pipeline, tmp_path):
    assert "no model" in refused(capsys, "prune", "-r", "redundancy")
    refused(capsys, "prune", "m", "-r", "nobody")
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: 1\nscore: {kind: random}\nremove: {heads: -1}\n")
    assert "bad.yaml:3: remove.heads" in refused(capsys, "prune", "m", "-r", bad)
    assert "--set seed=x" in refused(capsys, "prune", "m", "-r", "redundancy", "--set", "seed=x")
    assert pipeline.calls == []


def test_the_pipeline_takes_what_the_command_hands_on():
    import headwise.prune.pipeline as real

    taken = inspect.signature(real.run).parameters
    assert {"output_dir", "overwrite", "resume", "device", "trust_remote_code"} <= set(taken)
    assert "trust_remote_code" in inspect.signature(real.dry_run).parameters


def test_a_dry_run_needs_no_weights(capsys, bert):
    AutoTokenizer.from_pretrained(where_is("embedded")).save_pretrained(bert)
    arguments = ["prune", bert, "-r", "redundancy", "--set", "remove.heads=3", "--dry-run"]
    code, out, _ = ran(capsys, *arguments)
    assert code == 0
    assert re.search(r"heads removed +3\b", out)
    found = json.loads(ran(capsys, *arguments, "--json")[1])
    assert (found["heads"], found["heads_removed"]) == (12, 3)
    message = refused(capsys, *arguments, "--set", "keep.heads.0=[4]")
    assert "--set keep.heads.0=[4]: keep.heads.0[0]: no head 4: site '0' has 4 heads, 0 to 3" in message


def test_run_folders_are_named_safely():
    name = str(run_folder(f"../../etc/{EVIL} model", "a/b"))
    assert re.fullmatch(r"runs/[A-Za-z0-9._-]+-\d{8}T\d{6}Z", name)
