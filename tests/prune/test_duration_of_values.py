"""What a repair takes that refits values is foretold, too: on small classifiers it is most of a run."""

import pytest

from headwise.analysis.sites import find_sites
from headwise.prune.forecast.duration import Duration
from headwise.prune.forecast.needs import Needs, Texts
from headwise.prune.recipe import Recipe
from tests.prune.importance_scene import bert, llama


def repairing(model, *settings):
    recipe = Recipe.load("reconstruction", ["model.id=x", *settings])
    needs = Needs(recipe, model, find_sites(model), 4, Texts(256, 64, 25.0, 40))
    return needs, Duration(needs)


def test_values_take_their_time_where_they_are_refitted(monkeypatch):
    monkeypatch.setattr("headwise.prune.forecast.duration._operations_per_second", lambda _: 1e9)
    model = bert(hidden_size=96, num_attention_heads=12, num_hidden_layers=2)
    took = {how: repairing(model, f"compensate.values={how}")[1].seconds() for how in ("auto", "keep")}
    more = took["auto"]["repair"] - took["keep"]["repair"]
    read = 96 + 6 * 96
    sums, moved = 256 * 25 * read**2, 4 * 6 * (30 * 96**3 + 8 * 8 * 96 * 6 * 96) + 8 * 96 * read**2
    passes = 7 * 2 * sum(p.numel() for n, p in model.named_parameters() if "embed" not in n) * 256 * 25 * 1.15 / 1e9
    # Seven repairs of two blocks; and a pass or two of each over the texts.
    assert 7 * 2 * (3 * sums + moved) / 1e9 < more < 7 * 2 * (3 * sums + moved) / 1e9 + 3 * passes
    assert {part: took["auto"][part] for part in took["auto"] if part != "repair"} == {
        part: took["keep"][part] for part in took["keep"] if part != "repair"
    }


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (lambda: bert(hidden_size=1536, num_attention_heads=12, num_hidden_layers=1), []),
        (llama, ["compensate.values=refit"]),
        (bert, ["compensate={kind: bias}"]),
        (bert, ["compensate={kind: none}"]),
    ],
)
def test_where_none_are_refitted_they_take_no_time(model, settings):
    assert repairing(model(), *settings)[1]._values(1e9, 1e9) == 0


@pytest.mark.parametrize(
    ("settings", "share"),
    [(["remove={heads: 2}"], 0.25), (["remove={fraction: 0.75}"], 0.75), (["remove={parameters: 0.1}"], 0.5),
     (["reach={drop: 0.01}", "remove={fraction: 0.9}"], 0.5)],
)  # fmt: skip
def test_the_part_that_goes_is_what_the_recipe_says_or_half(settings, share):
    assert repairing(bert(), *settings)[0].share() == share
