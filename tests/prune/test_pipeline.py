"""A whole run, end to end: what is written, what stays as it was, and what an interruption costs."""

import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForSequenceClassification, modeling_utils

from headwise.analysis.errors import BadInput, ProofFailed
from headwise.analysis.evidence import Evidence
from headwise.prune import Plan, Recipe, load, pipeline, preparing, run
from headwise.prune.cli import main
from headwise.prune.shipped import shipped
from headwise.prune.sweep import sweep
from tests.prune.tiny_run import checkpoint, settings, table, tokenizer

FILES = {
    "recipe.yaml", "environment.json", "evidence", "plan.json", "proof.json", "compensation.json", "accuracy.json",
    "stability.json", "drift.json", "speed.json", "checkpoint", "report.html", "report.md", "report.json",
}  # fmt: skip
#: What a run decides and makes; times aside, all of it must be repeatable.
STAGES = (
    "evidence", "plan.json", "stability.json", "proof.json", "compensation.json", "accuracy.json", "drift.json",
    "speed.json", "checkpoint",
)  # fmt: skip


@pytest.fixture(scope="module")
def few_draws():
    """Runs draw as often as they do for users: how often is looked at."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    checkpoint(folder / "model")
    table(folder / "texts.jsonl")
    return folder


def recipe(place, name="gradient", *more, model=True):
    return Recipe.load(name, settings(place / "model" if model else None, place / "texts.jsonl", *more))


def digest(folder):
    """One hash of a folder's files, names included."""
    found = hashlib.sha256()
    for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def weights(folder):
    return load_file(folder / "checkpoint" / "model.safetensors")


def same(one, other):
    """The same plan and, bit for bit, the same weights."""
    assert (one / "plan.json").read_text() == (other / "plan.json").read_text()
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def nothing_left(folder):
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def done(place, tmp_path_factory):
    """One finished run of the recipe `gradient`."""
    return run(recipe(place), output_dir=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def brief(done, monkeypatch):
    """Runs that look up what heads do and how fast they are, where neither is the point."""
    import headwise.prune.pipeline as pipeline

    monkeypatch.setattr(preparing, "analyze", lambda *args, **kwargs: done.evidence)
    monkeypatch.setattr(pipeline, "compare_speed", lambda *args, **kwargs: done.speed)
    drift = json.loads((done.folder / "drift.json").read_text())
    monkeypatch.setattr(pipeline, "head_drift", lambda *args, **kwargs: drift)


# --- what a run writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_runs_from_end_to_end(name, place, tmp_path, capsys):
    said = ["prune", place / "model", "--recipe", name, "--output-dir", tmp_path / "run", "--quiet"]
    for change in settings(None, place / "texts.jsonl"):
        said += ["--set", change]
    assert main([str(word) for word in said]) == 0
    assert capsys.readouterr().out == ""
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    plan = Plan.load(tmp_path / "run" / "plan.json")
    removed = sum(len(heads) for heads in plan.remove.values())
    budget = Recipe.load(name).remove
    assert removed == int(budget.fraction * 8)  # never more than the budget
    assert all(len(heads) < 4 for heads in plan.remove.values())
    smaller = load(tmp_path / "run" / "checkpoint")
    assert all(parameter.isfinite().all() for parameter in smaller.parameters())
    proof = json.loads((tmp_path / "run" / "proof.json").read_text())
    assert proof["passed"]
    assert proof["worst"] < proof["limit"]


def test_a_run_folder_says_everything(done):
    files = {path.name: path for path in done.folder.iterdir()}
    assert set(files) == FILES
    read = {name: json.loads(files[name].read_text()) for name in files if name.endswith(".json")}
    assert all(content["schema"] == 1 for content in read.values())
    made = read["environment.json"]
    assert made["model"]["class"] == "BertForSequenceClassification"
    assert made["model"]["auto_class"] == "AutoModelForSequenceClassification"
    assert made["seed"] == 0
    assert {"python", "torch", "transformers"} <= set(made["versions"])
    texts = made["texts"]
    assert texts["calibration"]["count"] + texts["evaluation"]["count"] == 64
    assert read["accuracy.json"]["kind"] == "text-classification"
    assert read["accuracy.json"]["n"] == texts["evaluation"]["count"]
    assert read["speed.json"]["rows"][0]["operation_ratio"] > 1
    assert Recipe.load(files["recipe.yaml"]).score.kind == "gradient"
    evidence, plan = Evidence.load(files["evidence"]), Plan.load(files["plan.json"])
    assert len(evidence.heads) == 8
    # The score says who stands for heads that are alike, and the report says that it does.
    assert evidence.facts["clusters"]["representative"] == "gradient"
    scores, label = np.array([plan.score[site][head] for site, head in evidence.heads]), evidence["clusters/label"]
    best = [scores[i] == scores[label == label[i]].max() for i in range(8)]
    assert (evidence["clusters/representative"] <= best).all()
    assert evidence["clusters/representative"].sum() == len(set(label.tolist()))
    said = "The head that matters most by the score gradient stands for a group."
    assert said in read["report.json"]["similarity"]["groups"]
    report = files["report.html"].read_text()
    for site, heads in done.plan.remove.items():
        assert all(f"{site}.{head}" in report for head in heads)


def test_a_measure_that_the_score_asks_for_is_taken_beside_the_others(place, tmp_path):
    asked = recipe(place, "redundancy", "score.measure=jensen_shannon", "score.matters=norm")
    made = run(asked, output_dir=tmp_path / "run")
    arrays = Evidence.load(made.folder / "evidence").arrays
    assert {"similarity/jensen_shannon", "similarity/pearson"} <= set(arrays)
    assert made.plan.made_with["score"]["measure"] == "jensen_shannon"
    assert made.plan.made_with["stability"]["tau"] > 0
    other = recipe(place, "redundancy", "score.measure=cosine")
    assert not pipeline._measures(asked.resolved_yaml(), other), "an interrupted run would lack what the other needs"
    assert pipeline._measures(recipe(place, "redundancy").resolved_yaml(), other)


def test_the_accuracy_of_the_report_is_that_of_the_checkpoint(done, place):
    """Judged by hand: both checkpoints, text by text, on the texts that the run set apart."""
    from headwise.analysis.corpus.reading import read_source

    texts = read_source(str(place / "texts.jsonl"), text="text", label="label").split(0.5, 0)[1]
    tok = AutoTokenizer.from_pretrained(place / "model")
    for side, folder in (("dense", place / "model"), ("cut", done.folder / "checkpoint")):
        model = load(folder, cls=BertForSequenceClassification)
        with torch.inference_mode():
            said = [int(model(**tok(t.text, return_tensors="pt")).logits.argmax()) for t in texts.texts]
        right = [model.config.id2label[i] == text.label for i, text in zip(said, texts.texts, strict=True)]
        assert done.accuracy[side]["value"] == pytest.approx(sum(right) / len(right))


def test_the_plan_is_set_beside_heads_drawn_at_random_and_repaired_alike(done):
    """The plan's heads, silenced and repaired, do what the cut model does; the draws pass through the same hands."""
    found = done.accuracy["chance"]
    assert found["repair"] == "reconstruction"
    assert done.accuracy["n"] == found["n"]
    assert found["all"] == done.accuracy["dense"]["value"]
    assert found["plan"] == done.accuracy["cut"]["value"]
    assert len(found["drawn"]) == 5
    assert found["mean"] == pytest.approx(sum(found["drawn"]) / 5)
    assert found["worse"] == sum(value < found["plan"] for value in found["drawn"])
    assert found["heads"] == sum(len(heads) for heads in done.plan.remove.values())
    assert found["moved"]["plan"] == pytest.approx(done.accuracy["against_dense"]["kl"], rel=1e-6)
    assert len(found["moved"]["drawn"]) == 5
    for page in ("report.html", "report.md"):
        assert "the rest repaired" in (done.folder / page).read_text()


def test_a_hook_of_the_users_is_refused_before_the_long_look(place, tmp_path, monkeypatch):
    model = load(place / "model")
    model.bert.register_forward_hook(lambda *_: None)
    monkeypatch.setattr(preparing, "analyze", lambda *_, **__: pytest.fail("looked"))
    with pytest.raises(BadInput, match="a forward hook is on 'bert'"):
        run(recipe(place, model=False), model, tokenizer=tokenizer(), output_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_does_not_fit_is_said_before_the_long_look_by_whoever_looks(place, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "analyze", lambda *_, **__: pytest.fail("looked"))
    wrong = recipe(place, "gradient", "task.kind=causal-lm")
    with pytest.raises(BadInput, match="is no causal language model"):
        preparing.prepare(wrong)
    with pytest.raises(BadInput, match="is no causal language model"):
        run(wrong, output_dir=tmp_path / "run")
    with pytest.raises(BadInput, match="is no causal language model"):
        sweep(wrong, (0.25,), tmp_path / "swept")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_and_a_run_keep_the_sums_of_a_look_that_is_broken_off(place, tmp_path, monkeypatch):
    kept = []

    def broken_off(*_, keep, **__):
        kept.append(keep)
        raise KeyboardInterrupt

    monkeypatch.setattr(preparing, "analyze", broken_off)
    for work in (
        lambda: run(recipe(place), output_dir=tmp_path / "run"),
        lambda: sweep(recipe(place), (0.25,), tmp_path / "swept"),
    ):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert kept == [tmp_path / "run.partial" / "sums", tmp_path / "swept.partial" / "sums"]


def test_the_library_leaves_the_callers_model_as_it_was(place, tmp_path):
    model = load(place / "model", cls=BertForSequenceClassification)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = recipe(place, "redundancy", model=False)
    found = run(told, model, tokenizer=tokenizer(), output_dir=tmp_path / "run")
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert sum(p.numel() for p in found.model.parameters()) < sum(p.numel() for p in model.parameters())
    ids = {"input_ids": torch.arange(4, 12)[None]}
    again = load(tmp_path / "run" / "checkpoint")
    with torch.inference_mode():
        assert torch.equal(again(**ids).logits, found.model.eval()(**ids).logits)


def test_the_same_recipe_and_seed_give_the_same_plan_and_weights(done, place, tmp_path):
    again = run(recipe(place), output_dir=tmp_path / "again")
    same(done.folder, again.folder)
    first, second = (json.loads((f / "accuracy.json").read_text()) for f in (done.folder, again.folder))
    assert first == second
    drawn = [run(recipe(place, "random-baseline", f"seed={s}"), output_dir=tmp_path / str(s)).plan for s in (1, 2)]
    assert drawn[0].remove != drawn[1].remove


def test_limits_that_are_broken_mark_the_run_and_give_exit_code_3(brief, place, tmp_path, capsys):
    said = ["prune", place / "model", "-r", "gradient", "--output-dir", tmp_path / "run"]
    for change in settings(None, place / "texts.jsonl", "limits={drop: 0, speedup: 1000}"):
        said += ["--set", change]
    assert main([str(word) for word in said]) == 3
    error = capsys.readouterr().err
    assert "limits broken" in error
    assert str(tmp_path / "run") in error
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    assert "limits" in (tmp_path / "run" / "report.md").read_text().casefold()


def test_a_failed_proof_saves_nothing(brief, place, tmp_path, monkeypatch):
    from headwise.prune import carving

    wrong = lambda *a: {"schema": 1, "passed": False, "worst": 1.0, "limit": 1e-5, "sites": {"0": 1.0}}  # noqa: E731
    monkeypatch.setattr(carving, "prove", wrong)
    with pytest.raises(ProofFailed):
        run(recipe(place), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.rglob("*.safetensors")) or not (tmp_path / "run.partial" / "checkpoint").exists()


# --- folders -----------------------------------------------------------------------------------------------


def test_an_existing_folder_is_left_as_it_is_unless_asked(brief, place, tmp_path):
    target = tmp_path / "run"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists and is left as it is"):
        run(recipe(place), output_dir=target)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "mine.txt"]
    with pytest.raises(BadInput, match="neither a run nor a checkpoint"):
        run(recipe(place), output_dir=target, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "mine.txt"]
    (target / "plan.json").write_text("{}")
    run(recipe(place), output_dir=target, overwrite=True)
    assert {path.name for path in target.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_second_run_on_the_same_folder_refuses(place, tmp_path):
    work = tmp_path / "run.partial"
    work.mkdir()
    with (work / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(BadInput, match="another run is working"):
                run(recipe(place), output_dir=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["arrays.safetensors", "plan.json", "model.safetensors", "report"])
def test_a_full_disk_is_said_and_loses_nothing(file, brief, place, tmp_path, monkeypatch, capsys):
    """Whichever file it is that no longer fits; with space again, the run goes on from its finished stages."""
    said = ["prune", place / "model", "-r", "gradient", "--output-dir", tmp_path / "run"]
    for change in settings(None, place / "texts.jsonl"):
        said += ["--set", change]
    with monkeypatch.context() as full:
        full_disk(full, file)
        assert main([str(word) for word in said]) == 2
    error = capsys.readouterr().err
    assert "space" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()
    if file == "arrays.safetensors":
        nothing_left(tmp_path)
    else:
        assert main([str(word) for word in [*said, "--resume"]]) == 0
        assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


def full_disk(monkeypatch, file):
    """Writing `file` fails as on a full disk, by each of the ways in which files are written."""
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # What safetensors really raises has the reason in its words alone.
    in_words = safetensors.SafetensorError(f"Error while serializing: I/O error: {no_space.strerror}")

    def fails(write, name_of, error):
        def written(target, *args, **kwargs):
            if name_of(target).lstrip(".").startswith(file):
                raise error
            return write(target, *args, **kwargs)

        return written

    def of_handle(handle):
        return Path(f"/proc/self/fd/{handle}").readlink().name

    def second(write):
        def written(tensors, path, *args, **kwargs):
            return fails(lambda p, *a, **k: write(tensors, p, *a, **k), lambda p: Path(p).name, in_words)(
                path, *args, **kwargs
            )

        return written

    monkeypatch.setattr(Path, "write_text", fails(Path.write_text, lambda path: path.name, no_space))
    monkeypatch.setattr(os, "fsync", fails(os.fsync, of_handle, no_space))
    monkeypatch.setattr(safetensors.numpy, "save_file", second(safetensors.numpy.save_file))
    monkeypatch.setattr(modeling_utils, "safe_save_file", second(modeling_utils.safe_save_file))


def test_a_folder_that_cannot_be_written_is_said_at_once(place, tmp_path, monkeypatch, capsys):
    def mkdir(path, *args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(BadInput, match="cannot be written: Read-only"):
        run(recipe(place), output_dir=tmp_path / "run")


@pytest.mark.parametrize("what", ["a file", "no model", "no such text"])
def test_bad_input_leaves_nothing(what, place, tmp_path):
    target = tmp_path / "run"
    told = recipe(place)
    if what == "a file":
        target.write_text("mine")
    elif what == "no model":
        told = Recipe.load("gradient", settings(tmp_path / "nowhere", place / "texts.jsonl"))
    else:
        told = Recipe.load("gradient", settings(place / "model", tmp_path / "nothing.jsonl"))
    with pytest.raises(BadInput):
        run(told, output_dir=target)
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if what == "a file" else [])


# --- interruptions -----------------------------------------------------------------------------------------


def killed(stage, when, arguments):
    """How the command ends, in a process that is killed when about to give a stage's file its name, or right after."""
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_killing, args=(stage, when, [str(word) for word in arguments]))
    process.start()
    process.join()
    return process.exitcode


def _killing(stage, when, arguments):
    def killing(move):
        def moved(path, target):
            if Path(target).name == stage and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            found = move(path, target)
            if Path(target).name == stage:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return moved

    Path.rename, Path.replace = killing(Path.rename), killing(Path.replace)
    main(arguments)


def interrupted_at(stage, when, place, done, tmp_path, *changes, files=FILES):
    said = ["prune", place / "model", "-r", "gradient", "--quiet", "--output-dir", tmp_path / "run"]
    for change in settings(None, place / "texts.jsonl", *changes):
        said += ["--set", change]
    assert killed(stage, when, said) == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    work = tmp_path / "run.partial"
    kept = {path.name: path.stat().st_mtime_ns for path in work.iterdir() if path.name in STAGES}
    assert (stage in kept) == (when == "after" and stage in STAGES)
    if "plan.json" not in kept or (stage, when) == ("plan.json", "after"):
        # The plan's score has still to say in it who stands for heads that are alike.
        kept.pop("evidence", None)
    resumed = main([str(word) for word in (*said, "--resume")])
    assert resumed == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == files
    same(done.folder, tmp_path / "run")
    now = {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in kept}
    assert now == kept, "a finished stage was made again"


@pytest.mark.parametrize(("stage", "when"), [("plan.json", "before"), ("accuracy.json", "after")])
def test_a_killed_run_resumes_to_the_same_plan_and_weights(stage, when, place, done, tmp_path):
    interrupted_at(stage, when, place, done, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", [*STAGES, "report.html", "report.json"])
def test_a_run_killed_at_any_stage_resumes(stage, when, place, done, tmp_path):
    interrupted_at(stage, when, place, done, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["recovery.json", "accuracy.json", "checkpoint"])
def test_a_run_that_trains_resumes_to_the_same_weights(stage, place, tmp_path):
    more = "recover={kind: finetune, epochs: 1}"
    whole = run(recipe(place, "gradient", more), output_dir=tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    interrupted_at(stage, "after", place, whole, tmp_path / "killed", more, files={*FILES, "recovery.json"})


def partial(done, folder, *names):
    """What an interrupted run left."""
    work = folder / "run.partial"
    work.mkdir()
    for name in ("recipe.yaml", "environment.json", *names):
        source = done.folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, work / name)
    return folder / "run"


def test_an_unfinished_run_is_not_thrown_away_unasked(brief, place, done, tmp_path):
    target = partial(done, tmp_path, "evidence")
    before = digest(tmp_path)
    with pytest.raises(BadInput, match="--resume"):
        run(recipe(place), output_dir=target)
    (tmp_path / "run.partial" / ".lock").unlink(missing_ok=True)
    assert digest(tmp_path) == before
    run(recipe(place), output_dir=target, overwrite=True)
    same(done.folder, target)


def test_resuming_needs_something_to_resume_and_the_same_settings(place, done, tmp_path):
    with pytest.raises(BadInput, match="no unfinished run"):
        run(recipe(place), output_dir=tmp_path / "none", resume=True)
    assert not list(tmp_path.iterdir())
    target = partial(done, tmp_path, "evidence", "plan.json")
    with pytest.raises(BadInput, match="same recipe"):
        run(recipe(place, "gradient", "seed=3"), output_dir=target, resume=True)
    assert (tmp_path / "run.partial" / "plan.json").exists()


@pytest.mark.parametrize("what", ["model", "texts"])
def test_resuming_refuses_a_model_or_texts_that_changed_meanwhile(what, brief, done, place, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(place, mine)
    told = recipe(mine)
    first = run(told, output_dir=tmp_path / "first")
    target = partial(first, tmp_path, "evidence", "plan.json")
    if what == "model":
        checkpoint(mine / "model", initializer_range=0.2)
    else:
        table(mine / "texts.jsonl", 80)
    with pytest.raises(BadInput, match=f"{what}.* changed"):
        run(told, output_dir=target, resume=True)
    assert (tmp_path / "run.partial" / "plan.json").exists()


def test_a_stage_that_was_left_broken_is_named(place, done, tmp_path):
    target = partial(done, tmp_path, "evidence")
    (tmp_path / "run.partial" / "plan.json").write_text('{"schema": 1, "rem')
    with pytest.raises(BadInput, match=r"plan\.json"):
        run(recipe(place), output_dir=target, resume=True)
