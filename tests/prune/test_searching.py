"""The search that tries numbers of heads on the model: seeded, bounded, and told how it ended."""

import json
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest
import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.sites import Site
from headwise.prune.cli import main
from headwise.prune.deciding import searching
from headwise.prune.importance import Calibration, Scores
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe
from headwise.prune.selection import AdditiveCosts, Budget, Time, blocks_of, select
from headwise.prune.selection.meters import Linear, Table, freed
from tests.prune import tiny_run

SITES = {str(i): Site(str(i), f"l.{i}", f"l.{i}.o", 5, 5, 8, layer=i, kept=tuple(range(5))) for i in range(3)}
VALUES = {name: np.arange(5.0) + int(name) / 10 for name in SITES}


class Silencing(torch.nn.Module):
    gone: ClassVar = {}


class Loss:
    """Says what each removal costs; the score knows nothing of it."""

    def __init__(self, price):
        self.price, self.asked = price, []

    def losses(self, model, batch):
        counts = tuple(len(model.gone.get(name, ())) for name in SITES)
        self.asked.append(counts)
        return torch.full((4,), float(self.price(counts)))


def searched(monkeypatch, price, budget, meter=None, clock=None, evaluations=40, seconds="null", seed=0):
    model, task = Silencing(), Loss(price)

    @contextmanager
    def silenced(_, remove):
        model.gone = remove
        yield
        model.gone = {}

    @contextmanager
    def nothing(*_):
        yield

    for name, double in (("gated", silenced), ("given_back", nothing), ("judging", nothing)):
        monkeypatch.setattr(searching, name, double)
    recipe = Recipe.from_text(
        "schema: 1\nscore: {kind: random}\ncompensate: {kind: none}\n"
        f"search: {{kind: counts, evaluations: {evaluations}, seconds: {seconds}}}\nseed: {seed}"
    )
    costs = AdditiveCosts(VALUES)
    scores, known = Scores("known", VALUES, costs), Evidence([(n, h) for n in SITES for h in range(5)])
    start = select(SITES, costs, budget, meter=meter, search=recipe.search)
    more = {} if clock is None else {"clock": clock}
    chosen, facts = searching.search(
        recipe, Calibration(model, SITES, [], task), scores, known, [None], start, budget, meter, **more
    )
    return chosen, facts, task, start


def counts_of(chosen):
    return tuple(len(chosen.remove.get(name, ())) for name in SITES)


def test_it_goes_where_the_model_does_best(monkeypatch):
    """The score spreads six removals evenly; the model wants four in the last site."""
    chosen, facts, task, start = searched(monkeypatch, lambda n: abs(n[2] - 4) + 0.1 * n[0], Budget(heads=6))
    assert counts_of(start) == (2, 2, 2)
    assert counts_of(chosen) == (0, 2, 4)
    assert chosen.remove["2"] == [0, 1, 2, 3], "which heads go from a site, the score says"
    assert (facts["start"], facts["found"]) == (pytest.approx(2.2), pytest.approx(0.0))
    assert facts["moves"] >= 2
    assert facts["judged"] == len(task.asked) <= 40
    assert len(set(task.asked)) == len(task.asked), "nothing is judged twice"
    assert {name: len(heads) for name, heads in chosen.reasons.items()} == dict.fromkeys(SITES, 5)
    assert facts["reproducible"]


def test_same_seed_same_path_and_the_start_stays_where_nothing_is_better(monkeypatch):
    def price(counts):
        return np.sin(7 * counts[0] + 3 * counts[1] + counts[2])

    paths = [searched(monkeypatch, price, Budget(heads=7), evaluations=12, seed=seed)[2].asked for seed in (3, 3, 4)]
    assert paths[0] == paths[1] != paths[2]
    assert 6 < len(paths[0]) <= 12
    chosen, facts, task, start = searched(
        monkeypatch, lambda n: -float(n == (2, 2, 2)), Budget(heads=6), evaluations=500
    )
    assert chosen is start
    assert facts["moves"] == 0
    assert facts["stopped"] == "every neighbour was tried"
    assert len(task.asked) < 30
    assert {sum(counts) for counts in task.asked} == {6}


def test_the_clock_stops_it_and_that_is_said(monkeypatch, caplog):
    ticks = iter(range(1000))
    _, facts, task, _ = searched(monkeypatch, sum, Budget(heads=6), clock=lambda: float(next(ticks)), seconds=5)
    assert facts["stopped"] == "seconds"
    assert not facts["reproducible"]
    assert len(task.asked) == 5
    assert "stopped by the clock" in caplog.text


@pytest.mark.parametrize("kind", ["time", "parameters"])
def test_every_candidate_meets_the_budget(monkeypatch, kind):
    if kind == "time":
        budget, meter = Time(milliseconds=6.4, batch=1, length=8), Table("milliseconds", 10.0, {
            "0": [0.0, 0.0, 0.5, 1.0, 1.5, 2.0], "1": [0.0, 0.0, 0.0, 1.0, 1.0, 2.0],
                "2": [0.0, 0.0, 1.0, 1.2, 1.4, 1.6]})  # fmt: skip
    else:
        budget = Budget(parameters=0.25)
        meter = Linear("parameters", 40.0, {"0": 1.0, "1": 1.5, "2": 2.0}, dict.fromkeys(SITES, 0.0))
    chosen, _, task, _ = searched(monkeypatch, lambda n: n[0] - n[2], budget, meter, evaluations=60)
    blocks = blocks_of(SITES)

    def frees(counts):
        return sum(freed(meter, b, b.kept, b.kept[:n]) for b, n in zip(blocks.values(), counts, strict=True))

    assert len(task.asked) >= 3
    for counts in [*task.asked, counts_of(chosen)]:
        if kind == "time":
            assert frees(counts) >= 3.6 - 1e-6
            less = [(*counts[:i], counts[i] - 1, *counts[i + 1 :]) for i in range(3) if counts[i]]
            assert all(frees(fewer) < 3.6 for fewer in less), "nothing goes that need not"
        else:
            assert 10 - 1 < frees(counts) <= 10 + 1e-6


def test_a_loss_that_is_never_finite_is_an_error(monkeypatch):
    with pytest.raises(BadInput, match="no candidate is finite"):
        searched(monkeypatch, lambda _: float("nan"), Budget(heads=6), evaluations=4)


def test_a_run_by_counts_is_written_down_and_repeats(tmp_path):
    model = tiny_run.checkpoint(tmp_path / "model")
    texts = tiny_run.table(tmp_path / "texts.jsonl")
    plans = []
    for number in range(2):
        words = ["plan", str(model), "-r", "gradient", "--output", str(tmp_path / f"{number}.json"), "--quiet"]
        for setting in (*tiny_run.settings(None, texts), "search={kind: counts, evaluations: 5}", "remove.heads=3"):
            words += ["--set", setting]
        assert main(words) == 0
        plans.append(Plan.load(tmp_path / f"{number}.json"))
    assert plans[0].remove == plans[1].remove
    assert plans[0].count == 3
    found = plans[0].expected["search"]
    assert found["judged"] <= 5
    assert found["found"] <= found["start"]
    assert found["reproducible"] is True
    assert plans[0].budget["search"] == {"kind": "counts", "evaluations": 5}
    assert json.loads((tmp_path / "0.json").read_text())["expected"] == plans[1].model_dump()["expected"]


@pytest.mark.parametrize("head", [True, False])
def test_agreement_judges_candidates_by_what_the_dense_model_says_of_their_texts(tmp_path, head):
    model = tiny_run.checkpoint(tmp_path / "model", head=head)
    texts = tiny_run.table(tmp_path / "texts.jsonl")
    words = ["plan", str(model), "-r", "counts", "--output", str(tmp_path / "plan.json"), "--quiet"]
    for setting in (*tiny_run.settings(None, texts), "search.evaluations=3", "task={kind: agreement}"):
        words += ["--set", setting]
    assert main(words) == 0
    found = Plan.load(tmp_path / "plan.json").expected["search"]
    assert found["judged"] == 3
    assert np.isfinite(found["found"])
