"""A revision that is asked for of a run is that of the model that it is compared with, whoever names that model."""

import json

import pytest

from headwise.analysis.errors import BadInput
from headwise.prune.judgement import pair_of
from tests.prune.tiny_run import settings

ASKED = ["model.revision=v2"]


def a_run(folder, model, began):
    from headwise.prune.recipe import Recipe

    (folder / "checkpoint").mkdir(parents=True)
    named = [] if model is None else [f"model.id={model}"]
    recipe = Recipe.load("random-baseline", [*settings(None, folder / "texts.jsonl"), *named])
    (folder / "recipe.yaml").write_text(recipe.resolved_yaml())
    (folder / "environment.json").write_text(json.dumps({"model": began}))
    return str(folder)


@pytest.mark.parametrize("model", [None, "owner/model"])
def test_it_is_that_of_the_model_the_run_began_with(tmp_path, model):
    run = a_run(tmp_path / "run", model, {"id": "owner/model", "revision": "0" * 40, "hash": "x", "class": "Bert"})
    pair = pair_of(run, changes=ASKED)
    assert (pair.against, pair.revision("owner/model"), pair.revision(pair.model)) == ("owner/model", "v2", None)
    assert pair.began is None, "another revision may have other weights"
    asked_for_nothing = pair_of(run)
    assert asked_for_nothing.revision("owner/model") == "0" * 40


@pytest.mark.parametrize("model", [None, "owner/model"])
def test_it_is_that_of_another_model_that_it_is_compared_with(tmp_path, model):
    run = a_run(tmp_path / "run", model, {"id": "owner/model", "revision": "0" * 40, "hash": "x", "class": "Bert"})
    pair = pair_of(run, "other/model", changes=ASKED)
    assert (pair.against, pair.revision("other/model")) == ("other/model", "v2")


def test_where_no_model_is_known_that_is_said(tmp_path):
    run = a_run(tmp_path / "run", None, {})
    assert pair_of(run).against is None
    with pytest.raises(BadInput, match="does not tell which model it began with; name it: --against"):
        pair_of(run, changes=ASKED)
    lent = a_run(tmp_path / "lent", None, {"id": "BertModel", "class": "BertModel", "hash": "x"})
    with pytest.raises(BadInput, match="was lent from memory"):
        pair_of(lent, changes=ASKED)
