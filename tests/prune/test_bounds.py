"""The most that may go while a result is reached: one piece has to fit it, and that is known before anything is measured."""

import json
import re

import pytest
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from headwise.analysis.sites import find_sites
from headwise.prune.metering import meter_of
from headwise.prune.recipe import Recipe, RecipeError, check_against
from headwise.prune.selection import Budget
from headwise.prune.surgery import cut

SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40}


def check(model, scope="model", unit="group", **bound):
    text = f"schema: 1\nscore: {{kind: random}}\nreach: {{drop: 0.01}}\nremove: {json.dumps(bound)}"
    recipe = Recipe.from_text(text, overrides=[f"scope={scope}", f"unit={unit}"])
    check_against(recipe, find_sites(model), model)


def llama():
    return LlamaModel(LlamaConfig(vocab_size=50, num_key_value_heads=3, head_dim=8, **SIZES))


@pytest.mark.parametrize("scope", ["model", "site", "uniform"])
@pytest.mark.parametrize(
    "bound", [{"parameters": 0.001}, {"operations": 0.001, "length": 9}, {"cache": 0.01}, {"parameters": 0}]
)
def test_a_bound_below_one_piece_is_refused_with_the_nearest(scope, bound):
    amount, model = next(iter(bound)), llama()
    with pytest.raises(RecipeError, match=rf"at most .* of the {amount} may go, less than what goes in one") as told:
        check(model, scope, **bound)
    nearest = float(re.search(rf"{amount}: ([\d.]+) with", str(told.value))[1])
    check(model, scope, **{**bound, amount: nearest})
    check(model, scope, **{**bound, amount: 1.0})


@pytest.mark.parametrize("scope", ["model", "uniform"])
def test_what_an_earlier_cut_took_counts_in(scope):
    model = llama()
    meter = meter_of(model, find_sites(model), Budget(parameters=0.2))
    smaller = cut(model, {"0": [0, 1], "1": [2, 3]})
    with pytest.raises(RecipeError, match="less than what goes in one piece") as told:
        check(smaller, scope, parameters=4 * meter.per_head["0"] / meter.total)
    check(smaller, scope, parameters=float(re.search(r"parameters: ([\d.]+) with", str(told.value))[1]))


def test_bounds_that_cannot_be_counted_are_refused_before_anything_is_measured():
    with pytest.raises(RecipeError, match="keeps no key/value cache"):
        check(BertModel(BertConfig(vocab_size=40, **SIZES)), cache=0.5)
    with pytest.raises(RecipeError, match="cannot be counted with unit head"):
        check(llama(), unit="head", parameters=0.5)
    with pytest.raises(RecipeError, match="leave nothing to remove"):
        check(cut(llama(), {site: [0, 1, 2, 3] for site in "01"}), parameters=0.9)
