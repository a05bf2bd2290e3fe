"""Plans as files, plans applied, and removals that stay below a drop."""

import itertools
import json
import shutil

import numpy as np
import pytest
import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.sites import find_sites
from headwise.prune import deciding
from headwise.prune.checkpoint import load
from headwise.prune.cli import main
from headwise.prune.importance import Calibration, Scores
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe, RecipeError
from tests.word_tokenizers import of_words

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny encoder with a tokenizer that knows the embedded texts' letters."""
    from tokenizers import pre_tokenizers
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    letters = ["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
    of_words(letters, split=pre_tokenizers.Split("", "isolated"), pad_token="[PAD]").save_pretrained(folder)
    BertModel(BertConfig(vocab_size=40, initializer_range=0.2, **SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(
        "schema: 1\ndata: {calibration: {source: embedded, samples: 40}, max_length: 16}\n"
        "task: {kind: agreement}\nscore: {kind: magnitude}\nremove: {heads: 3}\ncompensate: {kind: reconstruction}\n"
        "speed: {batches: [1], lengths: [16], rounds: 3}\n"
    )
    return path


def test_a_plan_is_written_edited_and_applied(checkpoint, recipe_file, tmp_path, capsys, caplog):
    written = tmp_path / "plan.json"
    assert main(["plan", str(checkpoint), "-r", str(recipe_file), "-o", str(written), "--quiet"]) == 0
    plan = Plan.load(written)
    assert plan.count == 3
    assert plan.made_with["score"]["kind"] == "magnitude"
    assert main(["plan", str(checkpoint), "-r", str(recipe_file), "-o", str(written), "--quiet"]) == 2
    edited = json.loads(written.read_text())
    edited["remove"] = {"0": [2], "1": [0, 3]}
    written.write_text(json.dumps(edited))
    plain, repaired, trained = (tmp_path / name for name in ("plain", "repaired", "trained"))
    assert main(["cut", str(checkpoint), str(written), "--output-dir", str(plain), "--quiet"]) == 0
    assert (
        main(["cut", str(checkpoint), str(written), "-r", str(recipe_file), "--output-dir", str(repaired), "-q"]) == 0
    )
    training = tmp_path / "training.yaml"
    training.write_text(recipe_file.read_text() + "recover: {kind: distil, epochs: 3, rate: 1.0e-3}\n")
    capsys.readouterr()
    assert (
        main(["cut", str(checkpoint), str(written), "-r", str(training), "--output-dir", str(trained), "--json"]) == 0
    )
    learnt = json.loads(capsys.readouterr().out)["recovery"]
    assert learnt["loss"]["after"] < learnt["loss"]["before"]
    assert json.loads((trained / "headwise.json").read_text())["recovery"] == learnt
    assert "recovery" not in json.loads((repaired / "headwise.json").read_text())
    # What the decision said of a head that a person chose otherwise is not passed on as the reason.
    kept = json.loads((plain / "headwise.json").read_text())["plan"]["reasons"]
    decided = plan.reasons
    for site, heads in decided.items():
        for head, said in heads.items():
            goes = (site, head) in {("0", 2), ("1", 0), ("1", 3)}
            was = head in plan.remove.get(site, [])
            prefix = "" if goes == was else f"{'removed' if goes else 'kept'} by hand; decided: "
            assert kept[site][str(head)] == prefix + said
    assert Plan.load(written).reasons["0"][2] == kept["0"]["2"]
    models = [load(folder) for folder in (plain, repaired, trained)]
    for model in models:
        assert [site.kept for site in find_sites(model).values()] == [(0, 1, 3), (1, 2)]
    weights = [model.encoder.layer[0].attention.output.dense.weight for model in models]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(weights, 2))
    caplog.clear()
    # What was cut from the plan's model counts its heads as that one does; another model does not.
    assert main(["cut", str(plain), str(written), "--output-dir", str(tmp_path / "twice")]) == 2
    assert "every head that it names is gone already" in capsys.readouterr().err
    assert not (tmp_path / "twice").exists()
    more = tmp_path / "more.json"
    more.write_text(json.dumps({**edited, "remove": {"0": [2, 3], "1": [0]}}), encoding="utf-8-sig")
    assert main(["cut", str(plain), str(more), "--output-dir", str(tmp_path / "twice")]) == 0
    assert "heads removed: 1;" in capsys.readouterr().out
    assert "another head" not in caplog.text
    other = shutil.copytree(checkpoint, tmp_path / "other")
    assert main(["cut", str(other), str(written), "--output-dir", str(tmp_path / "of-other")]) == 0
    assert "another head" in caplog.text
    assert main(["cut", str(checkpoint), str(written), "--output-dir", str(plain), "--quiet"]) == 2
    assert "exists" in capsys.readouterr().err
    for wrong, said in (({"9": [0]}, "no site '9'"), ({}, "nothing to cut"), ({"0": [4]}, "no head 4")):
        written.write_text(json.dumps({**edited, "remove": wrong}))
        assert main(["cut", str(checkpoint), str(written), "--output-dir", str(tmp_path / "no"), "--quiet"]) == 2
        assert f"{written}{': ' if wrong else ' '}" in (err := capsys.readouterr().err)
        assert said in err
        assert not (tmp_path / "no").exists()


def test_a_sweep_judges_every_budget_and_goes_on_where_it_was(checkpoint, recipe_file, tmp_path, capsys):
    target = tmp_path / "sweep"
    words = ["sweep", str(checkpoint), "-r", str(recipe_file), "--budgets", "0.25,0.5", "--output-dir", str(target)]
    assert main([*words, "--json", "--quiet"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["heads"] for point in points] == [2, 4]
    first, second = (Plan.load(target / f"budget-{share}" / "plan.json").remove for share in ("0.25", "0.5"))
    assert all(set(heads) <= set(second[site]) for site, heads in first.items()), "one path: larger holds smaller"
    for point in points:
        folder = target / f"budget-{point['fraction']:g}"
        assert (folder / "accuracy.json").exists()
        assert (folder / "speed.json").exists() == point["chosen"]
        if point["chosen"]:
            kept = sum(len(site.kept) for site in find_sites(load(folder / "checkpoint")).values())
            assert kept == 8 - point["heads"]
    assert {"sweep.html", "sweep.md", "sweep-report.json", "stability.json"} <= {
        path.name for path in target.rglob("*")
    }
    assert main(words) == 2
    assert main(["sweep", str(checkpoint), "-r", str(recipe_file), "--budgets", "a", "--quiet"]) == 2
    assert main(["sweep", str(checkpoint), "-r", str(recipe_file), "--budgets", "0.99", "--quiet"]) == 2


class Grading:
    """A task whose drop is known: each silenced head costs what it says."""

    def __init__(self, prices, noise=0.0):
        self.prices, self.noise, self.judged = prices, noise, []

    def judge(self, model, corpus):
        from headwise.prune.tasks import Outcome

        removed = tuple(sorted(model.silenced))
        self.judged.append(removed)
        rng = np.random.default_rng(len(self.judged))
        each = 1 - sum(self.prices[head] for head in removed) + self.noise * rng.normal(size=400)
        return Outcome("known", "value", float(each.mean()), each, True, corpus.texts, [None] * 400)


class Silencing(torch.nn.Module):
    silenced: tuple = ()


def reaching(monkeypatch, drop, prices, noise=0.0):
    """Run the search on a model whose heads cost what is said; returns the plan's removal and its path."""
    from contextlib import contextmanager

    from headwise.analysis.corpus.texts import Corpus, Text
    from headwise.analysis.sites import Site
    from headwise.prune.selection import AdditiveCosts

    model = Silencing()

    @contextmanager
    def silenced(_, remove):
        model.silenced = tuple((site, head) for site, heads in remove.items() for head in heads)
        yield
        model.silenced = ()

    @contextmanager
    def nothing(*_):
        yield

    monkeypatch.setattr(deciding, "gated", silenced)
    monkeypatch.setattr(deciding, "given_back", nothing)
    sites = {"0": Site("0", "l", "l.o", 20, 20, 8, kept=tuple(range(20)))}
    recipe = Recipe.from_text(
        f"schema: 1\nscore: {{kind: random}}\nreach: {{drop: {drop}}}\ncompensate: {{kind: none}}"
    )
    values = {"0": np.arange(20.0)}
    task = Grading({("0", head): price for head, price in enumerate(prices)}, noise)
    corpus = Corpus([Text(str(i)) for i in range(400)])
    known = Evidence([("0", head) for head in range(20)])
    scores = Scores("known", values, AdditiveCosts(values))
    chosen, path = deciding._most_below(
        recipe, Calibration(model, sites, [], task), scores, known, deciding.Judge(task, corpus)
    )
    return chosen.remove, path, task


def test_the_most_below_a_drop_is_found_from_small_to_large(monkeypatch):
    remove, path, _ = reaching(monkeypatch, 0.105, [0.02] * 20)
    assert remove == {"0": [0, 1, 2, 3, 4]}
    assert [step["passed"] for step in path] == [True] * 5 + [False]


def test_the_search_stops_at_the_first_failure_even_if_later_ones_would_pass(monkeypatch):
    remove, path, task = reaching(monkeypatch, 0.1, [0.0, 0.5, -0.5, *[0.0] * 17])
    assert remove == {"0": [0]}
    assert len(path) == 2
    assert len(task.judged) == 3  # dense, one passed, one failed: nothing after it is looked at


def test_uncertainty_counts_against_a_candidate(monkeypatch):
    sure, *_ = reaching(monkeypatch, 0.1, [0.019] * 20)
    unsure, path, _ = reaching(monkeypatch, 0.1, [0.019] * 20, noise=0.3)
    assert sum(map(len, unsure.values())) < sum(map(len, sure.values()))
    assert path[-1]["drop"] < 0.1 < path[-1]["upper"]


def test_what_cannot_be_reached_says_how_close_it_came(monkeypatch):
    with pytest.raises(BadInput, match=r"with 1 heads the drop may be 0\.5"):
        reaching(monkeypatch, 0.1, [0.5] * 20)


def test_a_drop_that_no_removal_can_be_held_to_is_refused_before_anything_is_measured():
    from headwise.analysis.sites import Site
    from headwise.prune.recipe import check_against

    sites = {"0": Site("0", "l", "l.o", 4, 2, 8, kept=(0, 1, 2, 3))}
    text = "schema: 1\nscore: {kind: random}\nreach: {drop: 0.01}"
    check_against(Recipe.from_text(text), sites)
    for change, told in (
        ("keep.layers=['0']", "leave nothing to remove"),
        ("keep.minimum_per_site=3", "leave nothing to remove"),
        (
            "remove.heads=1",
            r"at most 1 of 4 heads may go.*nearest budget that can be met is heads: 2 \(fraction: 0.5\)",
        ),
    ):
        with pytest.raises(RecipeError, match=told):
            check_against(Recipe.from_text(text, overrides=[change]), sites)


def test_reach_takes_the_place_of_a_budget():
    recipe = Recipe.from_text("schema: 1\nscore: {kind: random}\nreach: {drop: 0.01}")
    assert recipe.remove.fraction == 1.0
    assert Recipe.from_text(recipe.resolved_yaml()) == recipe
    assert Recipe.from_text("schema: 1\nscore: {kind: random}").remove.fraction == 0.3
    with pytest.raises(RecipeError, match="exactly one of drop, milliseconds"):
        Recipe.from_text("schema: 1\nscore: {kind: random}\nreach: {}")
