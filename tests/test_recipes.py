"""The recipes that ship: short, commented, right, and found by name."""

import re
from importlib.resources import files

import pytest

from headwise.analysis.sites import Site
from headwise.prune.importance import SCORES
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.recipe_text import read
from headwise.prune.shipped import recipe_text, shipped

PROMISED = {"quickstart", "redundancy", "gradient", "random-baseline", "reconstruction", "counts"}


def test_the_promised_recipes_ship():
    assert set(shipped()) >= PROMISED
    assert {path.name for path in files("headwise.recipes").iterdir() if path.name.endswith(".yaml")} == {
        f"{name}.yaml" for name in shipped()
    }


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_is_short_commented_and_right(name):
    text, where = recipe_text(name)
    lines = text.splitlines()
    assert where == f"recipes/{name}.yaml"
    assert 10 <= len(lines) <= 30
    assert lines[0].startswith("# ")
    assert sum("#" in line for line in lines) >= 3
    assert max(map(len, lines)) <= 110
    recipe = Recipe.load(name)
    assert recipe.description
    assert Recipe.from_text(recipe.resolved_yaml()) == recipe


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_fits_models_of_any_size(name):
    for layers, heads in ((2, 4), (6, 12), (32, 32)):
        sites = {
            str(i): Site(str(i), f"a{i}", f"a{i}.o", heads, heads, 8, layer=i, kept=tuple(range(heads)))
            for i in range(layers)
        }
        check_against(Recipe.load(name), sites)


def test_the_recipes_are_named_after_their_scores():
    for name in ("redundancy", "gradient"):
        assert Recipe.load(name).score.kind == name
    assert Recipe.load("random-baseline").score.kind == "random"


def test_quickstart_needs_no_network():
    recipe = Recipe.load("quickstart")
    assert recipe.model.id == "embedded"
    assert recipe.data.calibration.source == "embedded"
    assert recipe.data.evaluation is None
    assert recipe.task.kind == "embedding-probe"
    assert recipe.compensate.kind == "reconstruction"
    assert 0.25 < recipe.remove.fraction < 0.4


def test_examples_in_comments_are_right():
    """What a comment offers as an alternative is accepted, too."""
    assert Recipe.load("redundancy", ["remove.heads=43"]).remove.heads == 43
    for scope in re.findall(r"\b(site|uniform):", recipe_text("redundancy")[0]):
        assert Recipe.load("redundancy", [f"scope={scope}"]).scope == scope
    assert Recipe.load("gradient", ["keep.roles.previous=1"]).keep.roles == {"previous": 1}
    assert Recipe.load("reconstruction", ["reach={drop: 0.02}"]).searched
    assert Recipe.load("reconstruction", ["reach={milliseconds: 12}"]).time.milliseconds == 12
    assert Recipe.load("counts", ["reach={milliseconds: 12, batch: 8, length: 128}"]).time.where.startswith("batch 8")
    offered = "data.calibration={source: texts.csv, text: review, label: stars}"
    assert Recipe.load("gradient", [offered]).data.calibration.label == "stars"


def test_every_score_can_take_the_place_of_a_shipped_one():
    for kind in SCORES:
        assert Recipe.load("redundancy", [f"score.kind={kind}"]).score.kind == kind


def test_a_recipe_says_nothing_twice():
    """Keys in the order of the design, each once."""
    order = [info.alias or name for name, info in Recipe.model_fields.items()]
    for name in shipped():
        keys = list(read(*recipe_text(name)).data)
        assert keys == sorted(keys, key=order.index)
