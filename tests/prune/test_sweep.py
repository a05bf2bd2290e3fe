"""One walk for many budgets: plans that hold one another, numbers that no way of running changes."""

import itertools
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.errors import BadInput
from headwise.analysis.identity import weights_hash
from headwise.analysis.sites import Site, find_sites
from headwise.prune import judging, verifying
from headwise.prune import sweep as sweeping
from headwise.prune.checkpoint import load, read_back
from headwise.prune.cli import main
from headwise.prune.cli.sweep import _table
from headwise.prune.importance.fisher import QuadraticCosts
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe
from headwise.prune.recovery import FineTune
from headwise.prune.report import write_sweep
from headwise.prune.report.words import pairs
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.selection.path import walk
from headwise.prune.sweep import points as sweep_points
from headwise.prune.sweep import sweep
from headwise.prune.sweep.points import Point
from headwise.prune.verifying import verify
from tests.prune import tiny_run

scenes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "groups": st.integers(1, 4),
        "per_group": st.integers(1, 2),
        "unit": st.sampled_from(["group", "even", "head"]),
        "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 2),
        "most": st.integers(1, 24),
        "gone": st.integers(0, 1),
        "seed": st.integers(0, 99),
    }
)


@given(scenes)
@settings(max_examples=120, deadline=None)
def test_every_beginning_of_the_path_is_what_its_budget_alone_selects(scene):
    heads, generator = scene["groups"] * scene["per_group"], np.random.default_rng(scene["seed"])
    sites, forms = {}, {}
    for layer in range(scene["layers"]):
        kept = tuple(range(scene["gone"] * scene["per_group"], heads))
        sites[str(layer)] = Site(str(layer), f"l.{layer}", f"l.{layer}.o", heads, scene["groups"], 8, kept=kept)
        root = generator.normal(size=(len(kept), len(kept)))
        forms[str(layer)] = root @ root.T
    costs, how = QuadraticCosts(forms), {"scope": scene["scope"], "unit": scene["unit"]}
    how["keep"] = Keep(minimum_per_site=scene["minimum"])
    try:
        path = walk(sites, costs, Budget(heads=scene["most"]), **how)
    except BadInput:
        return
    for count in range(1, scene["most"] + 1):
        try:
            alone = select(sites, costs, Budget(heads=count), score="fisher", **how)
        except BadInput:
            continue
        found = path.beginning(count, "fisher")
        assert (found.remove, found.reasons) == (alone.remove, alone.reasons), count
        assert found.cost == alone.cost


SHARES = (0.25, 0.5, 0.75)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    tiny_run.checkpoint(folder / "model")
    tiny_run.table(folder / "texts.jsonl")
    return folder


def recipe(place, *more):
    return Recipe.load("gradient", tiny_run.settings(place / "model", place / "texts.jsonl", *more))


@pytest.fixture(scope="module")
def done(place):
    """A sweep that nothing disturbed, with one budget cut."""
    return sweep(recipe(place), SHARES, place / "done", which=[0.5])


def begun(place, target):
    """A sweep that has got as far as the evidence: looking takes long, and is the same for all."""
    shutil.copytree(place / "done" / "evidence", target.with_name(f"{target.name}.partial") / "evidence")
    return target


def told(folder, share, name):
    return json.loads((folder / f"budget-{share:g}" / f"{name}.json").read_text())


def test_plans_hold_one_another_and_every_budget_is_a_run(place, done):
    plans = [Plan.load(point.folder / "plan.json") for point in done]
    assert [plan.count for plan in plans] == [point.heads for point in done] == [2, 4, 6]
    for smaller, larger in itertools.pairwise(plans):
        assert all(set(heads) <= set(larger.remove[site]) for site, heads in smaller.remove.items())
    for point, plan in zip(done, plans, strict=True):
        assert plan.made_with["stability"]["score"] == "gradient"
        assert told(place / "done", point.fraction, "stability") == plan.made_with["stability"]
        assert told(place / "done", point.fraction, "accuracy")["drop"] == point.drop
        again = Recipe.load(point.folder / "recipe.yaml")
        assert again.remove.fraction == point.fraction
        if not point.chosen:
            assert not (point.folder / "checkpoint").exists()
            continue
        assert told(place / "done", point.fraction, "proof")["passed"]
        kept = {site: found.kept for site, found in find_sites(load(point.folder / "checkpoint")).items()}
        assert all(set(kept[site]).isdisjoint(heads) for site, heads in plan.remove.items())
    path = json.loads((place / "done" / "sweep.json").read_text())["path"]
    assert path == {"nested": True, "how": "one greedy path, walked once"}


def test_a_killed_sweep_goes_on_and_ends_with_the_same_numbers(place, done, tmp_path, monkeypatch):
    target = begun(place, tmp_path / "killed")
    child = os.fork()
    if not child:
        # Another process: killed for good, right after the first budget is judged.
        named = Path.replace

        def killing(path, other):
            found = named(path, other)
            if Path(other).name == "accuracy.json":
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        Path.replace = killing
        sweep(recipe(place), SHARES, target, resume=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    work = tmp_path / "killed.partial"
    assert [share for share in SHARES if (work / f"budget-{share:g}" / "accuracy.json").exists()] == [0.25]
    before = (work / "budget-0.25" / "accuracy.json").stat().st_mtime_ns
    made = json.loads((work / "environment.json").read_text())
    other = made | {"texts": made["texts"] | {"calibration": {"hash": "of other texts"}}}
    (work / "environment.json").write_text(json.dumps(other))
    with pytest.raises(BadInput, match=r"data.calibration changed since the run began"):
        sweep(recipe(place), SHARES, target, resume=True)
    (work / "environment.json").write_text(json.dumps(made))
    walked, asked = [], []
    monkeypatch.setattr(sweeping, "walk", lambda *a, **k: walked.append(a))

    def other_processes(errand, tasks, jobs, label):
        """As several processes would: each begins anew from the errand."""
        asked.extend(tasks)
        mine = errand.start()
        for name, task in tasks.items():
            yield name, pickle.loads(pickle.dumps(task))(mine)

    monkeypatch.setattr(sweeping, "side_by_side", other_processes)
    points = sweep(recipe(place), SHARES, target, resume=True, jobs=2, which="none")
    assert (target / "budget-0.25" / "accuracy.json").stat().st_mtime_ns == before
    assert not walked
    assert asked == ["budget-0.5", "budget-0.75"]
    assert not any((point.folder / "checkpoint").exists() for point in points)
    for share in SHARES:
        for name in ("plan", "accuracy", "compensation", "stability"):
            assert told(target, share, name) == told(place / "done", share, name), (share, name)


@pytest.mark.slow
def test_several_processes_give_the_numbers_of_one(place, done, tmp_path):
    how = {"which": [0.5, 0.75], "resume": True}
    sweep(recipe(place, TRAINED), SHARES, begun(place, tmp_path / "one"), **how)
    points = sweep(recipe(place, TRAINED), SHARES, begun(place, tmp_path / "many"), jobs=3, **how)
    assert [point.drop for point in points] == [point.drop for point in done]
    for share in SHARES:
        names = ["plan", "accuracy", "compensation", *(["recovery", "proof"] if share > 0.25 else [])]
        for name in names:
            assert told(tmp_path / "many", share, name) == told(tmp_path / "one", share, name)
    for share in (0.5, 0.75):
        one, many = (tmp_path / name / f"budget-{share:g}" / "checkpoint" for name in ("one", "many"))
        assert weights_hash(load(one)) == weights_hash(load(many))
    errand = judging.Errand("schema: 1\nscore: {kind: random}", tmp_path, None, False, 1)
    with pytest.raises(BadInput, match="no model"):
        list(judging.side_by_side(errand, {"a": judging.Gate({}), "b": judging.Gate({})}, 2, ""))


def test_a_disk_that_gets_full_is_told_however_a_library_says_it(place, tmp_path, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(sweeping, "prepare", full)
    with pytest.raises(BadInput, match=r"no space left for .*full: the disk is full"):
        sweep(recipe(place), SHARES, tmp_path / "full")
    assert not list(tmp_path.iterdir())


def test_what_was_said_once_no_process_says_again(place, done, tmp_path, capfd, monkeypatch):
    rows = (place / "texts.jsonl").read_text().splitlines()
    (tmp_path / "yes.jsonl").write_text("".join(f"{row}\n" for row in rows if '"yes"' in row))
    one = Recipe.load("gradient", tiny_run.settings(place / "model", tmp_path / "yes.jsonl"))
    errand = judging.Errand(one.resolved_yaml(), place / "done" / "evidence", None, False, 1)
    tasks = {"a": judging.Gate({"0": [0]}), "b": judging.Gate({"0": [1]})}
    names, processes = set(), set()
    for name, _ in judging.side_by_side(errand, tasks, 2, ""):
        names.add(name)
        processes |= set(multiprocessing.active_children())
    assert names == {"a", "b"}
    # Nobody told them to end: they cleared away what libraries held in them.
    assert {process.exitcode for process in processes} == {0}
    assert "have one label" not in capfd.readouterr().err
    monkeypatch.setattr(judging.log, "level", logging.ERROR)
    assert replace(errand, level=judging.log.getEffectiveLevel()) == judging.Errand(*astuple(errand)[:5])


class Leaves:
    """A task that ends its process, as a system does that is out of memory."""

    def __call__(self, judging):
        os._exit(9)


def test_a_process_that_is_ended_is_told(place, done, monkeypatch):
    errand = judging.Errand(recipe(place).resolved_yaml(), place / "done" / "evidence", None, False, 1)
    with pytest.raises(BadInput, match=r"of 2 processes .* was ended, .*--resume.*under `if __name__ == '__main__':`"):
        list(judging.side_by_side(errand, {"a": Leaves(), "b": Leaves()}, 2, ""))


TRAINED = "recover={kind: finetune, epochs: 2, rate: 0.02}"


def test_chosen_budgets_are_trained_once_and_both_figures_shown(place, done, tmp_path, monkeypatch):
    target, timed = begun(place, tmp_path / "trained"), sweeping.compare_speed

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    # Before the checkpoint is there, then after it.
    monkeypatch.setattr(sweeping, "read_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(recipe(place, TRAINED), (0.25, 0.75), target, which=[0.75], resume=True)
    monkeypatch.setattr(sweeping, "read_back", read_back)
    monkeypatch.setattr(FineTune, "train", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(sweeping, "compare_speed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(recipe(place, TRAINED), (0.25, 0.75), target, which=[0.75], resume=True)
    monkeypatch.setattr(sweeping, "compare_speed", timed)
    monkeypatch.setattr(judging, "recover", interrupted)
    small, large = sweep(recipe(place, TRAINED), (0.25, 0.75), target, which=[0.75], resume=True)
    recovery, accuracy = told(target, 0.75, "recovery"), told(target, 0.75, "accuracy")
    assert recovery["loss"]["after"] < recovery["loss"]["before"], "else the weights are those of before"
    assert not list(target.rglob("trained.safetensors*"))
    assert (accuracy["judged"], told(target, 0.25, "accuracy")["judged"]) == ("cut", "gated")
    before = told(place / "done", 0.75, "accuracy")
    assert (large.value, large.drop, large.upper) == (before["cut"]["value"], before["drop"], before["upper"])
    assert recovery["untrained"]["cut"] == before["cut"]
    assert (large.recovered.value, large.recovered.drop) == (accuracy["cut"]["value"], accuracy["drop"])
    assert large.recovered.value > large.value, "half of the texts tell the classes apart by their words"
    assert small.recovered is None
    table = (target / "sweep.md").read_text()
    assert "the chosen budgets were trained (finetune) and judged again" in table
    assert table.count("| not cut | – | – | – | – |") == 1
    assert (target / "sweep.html").read_text().count('<circle class="dot"') == 2
    assert large.recovered.value == json.loads((target / "sweep.json").read_text())["points"][1]["recovered"]["value"]
    heading, rows = _table([small, large], "accuracy")
    assert ">trained" in heading
    assert [row[5] for row in rows] == ["not cut", f"{100 * large.recovered.value:.1f} %"]


def test_what_is_not_nested_is_decided_budget_by_budget_and_said(place, done, tmp_path, caplog):
    swapping = recipe(place, "search={kind: exchange}", "score={kind: fisher, form: block}")
    points = sweep(swapping, (0.25, 0.5), begun(place, tmp_path / "swapped"), which="none", resume=True)
    path = json.loads((tmp_path / "swapped" / "sweep.json").read_text())["path"]
    assert not path["nested"]
    assert "each budget decided by itself: search exchange" in path["how"]
    assert path["how"] in caplog.text
    assert path["how"] in (tmp_path / "swapped" / "sweep.md").read_text()
    assert [point.heads for point in points] == [2, 4]
    for file in (tmp_path / "swapped").rglob("plan.json"):
        how = json.loads(file.read_text())["expected"]["search"]
        assert how["judged"] > how["moves"] >= 0
        assert pairs({"search": how}).startswith(f"search exchange (judged {how['judged']}, start ")
    assert not sweeping.not_nested(recipe(place, "score={kind: gates, steps: 2}"))


def test_gates_with_an_aim_are_trained_for_every_budget(place):
    for aim in ("form: subset", "heads: 5", "keep: 0.25"):
        aimed = recipe(place, f"score={{kind: gates, {aim}}}")
        assert "trained for the number of heads" in sweeping.not_nested(aimed)
        assert sweeping._at(aimed, 0.25).score.target(8) == 6


def test_only_chosen_budgets_are_cut(place, tmp_path):
    points = [
        Point(s, h, Path(str(s)), 0.9, d, None, None, d) for s, h, d in ((0.2, 2, 0.1), (0.4, 4, 0.0), (0.6, 6, 0.2))
    ]
    for which, chosen in (("front", [0.4, 0.6]), ("all", [0.2, 0.4, 0.6]), ("none", []), ([0.2], [0.2])):
        found = sweep_points.chosen(points, which)
        assert [point.fraction for point in found if point.front] == [0.4, 0.6]
        assert [point.fraction for point in found if point.chosen] == chosen


def test_a_sweep_repeats_and_what_does_not_is_noticed(place, done, tmp_path, monkeypatch, capsys):
    found = verify(place / "done")
    assert found["same"]
    assert {name for name, same in found["files"].items() if not same} == set()
    assert {"budget-0.25/plan.json", "budget-0.75/accuracy.json", "budget-0.5/proof.json", "sweep.json"} <= set(
        found["files"]
    )
    assert found["weights"]["run"] == found["weights"]["again"] is not None
    assert found["budgets"] == {"planned": 3, "cut": 1}

    def again(recipe, shares, target, **how):
        assert (shares, how["which"]) == (list(SHARES), [0.5])
        shutil.copytree(place / "done", target)

    monkeypatch.setattr(verifying, "sweep", again)
    changed = shutil.copytree(place / "done", tmp_path / "changed")
    assert main(["report", "--verify", str(changed)]) == 0
    assert (
        "same plans of 3 budgets and, bit for bit, the same weights of the 1 that were cut" in capsys.readouterr().out
    )
    plan = json.loads((changed / "budget-0.25" / "plan.json").read_text())
    (changed / "budget-0.25" / "plan.json").write_text(json.dumps(plan | {"remove": {}}))
    assert main(["report", "--verify", str(changed)]) == 1
    said = capsys.readouterr().err
    assert "does not repeat: files: budget-0.25/plan.json" in said
    with pytest.raises(BadInput, match=r"judged, not cut: verify its sweep"):
        verify(changed / "budget-0.25")
    (changed / "sweep.json").unlink()
    with pytest.raises(BadInput, match=r"no finished sweep: sweep\.json is missing"):
        verify(changed)


@pytest.mark.parametrize(
    ("shares", "how", "said"),
    [
        ([], {}, "budgets: got none"),
        ([0.2, 1.0, 0.0], {}, "budgets: got 1, 0; give shares of the heads, above 0 and below 1"),
        ([0.25], {"which": [0.5]}, "cut: 0.5 is none of the budgets 0.25"),
        ([0.25], {"jobs": 0}, "jobs: got 0"),
        ([0.5, 0.9999], {}, "  budget 0.9999: remove: .* cannot be removed: more than"),
        ([0.0001, 0.5], {}, r"  budget 0.0001: remove: .* cannot be removed: less than .* nearest .* heads: \d"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_left(place, tmp_path, shares, how, said):
    with pytest.raises(BadInput, match=said):
        sweep(recipe(place), shares, tmp_path / "no", **how)
    assert [path.name for path in tmp_path.iterdir() if path.name != "no.partial"] == []


def test_the_page_draws_the_front_and_every_budget(place, done):
    write_sweep(place / "done")
    page, table = ((place / "done" / name).read_text() for name in ("sweep.html", "sweep.md"))
    assert page.count('<circle class="dot"') == 2
    assert page.count('<circle class="open"') == 2
    assert "one greedy path, walked once" in page
    assert "Kendall τ" in page
    assert table.count("| passed |") == 1
    content = json.loads((place / "done" / "sweep-report.json").read_text())
    assert [run["removed"] for run in content["comparison"]["runs"]] == [2, 4, 6]
    with pytest.raises(BadInput, match="no sweep"):
        write_sweep(place / "model")


def test_the_front_is_what_no_other_beats_in_speed_and_accuracy(place, done, monkeypatch):
    from headwise.prune.report import sweep_page

    swept = sweep_page.content(place / "done")
    drawn = sweep_page.plot(swept.comparison)
    places = ((200.0, 60.0), (300.0, 55.0), (400.0, 90.0), (350.0, 95.0))
    points = tuple(replace(drawn.points[0], x=x, y=y) for x, y in places)
    drawn = replace(drawn, dense=((100.0, 50.0),), points=points)
    monkeypatch.setattr(sweep_page, "plot", lambda _: drawn)
    for better, line in ((True, "100.0,50.0 300.0,55.0 400.0,90.0"), (False, "350.0,95.0 400.0,90.0")):
        runs = tuple(replace(run, higher_is_better=better) for run in swept.comparison.runs)
        assert sweep_page.front_line(replace(swept, comparison=replace(swept.comparison, runs=runs))) == line
