"""The most that may go while a result is reached: one piece has to fit it, and that is known before anything is measured."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, T5Config, T5Model

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.sites import find_sites
from headwise.prune.deciding import Judge, decide
from headwise.prune.importance import Calibration, Scores
from headwise.prune.recipe import Recipe, RecipeError, check_against
from headwise.prune.selection import Budget
from headwise.prune.speed.metering import meter_of
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


def t5():
    """A head of a cross block holds 256 parameters; the first of a self block 288, less the 128 of a bias table of its own."""
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 40}
    return T5Model(T5Config(decoder_start_token_id=0, **sizes))


@pytest.mark.parametrize("scope", ["model", "site"])
def test_a_bound_that_only_some_first_pieces_fit_is_told_before_anything_is_measured(scope, caplog):
    model = t5()
    total = meter_of(model, find_sites(model), Budget(parameters=0.2)).total
    check(model, scope, parameters=161 / total)
    assert not caplog.text
    check(model, scope, parameters=140 / total)
    assert f"some that may go first come to as much as {160 / total:.4g} in all" in caplog.text
    caplog.clear()
    check(llama(), scope, parameters=0.2)
    check(model, "uniform", parameters=0.9)
    assert not caplog.text


def test_a_first_step_that_is_more_than_may_go_is_said_with_what_it_is():
    model = t5()
    sites = find_sites(model)
    total = meter_of(model, sites, Budget(parameters=0.2)).total
    text = f"schema: 1\nscore: {{kind: random}}\nreach: {{drop: 0.1}}\nremove: {{parameters: {140 / total}}}"
    values = {name: np.full(4, 0.0 if name == "encoder.self.1" else 1.0) for name in sites}
    scores, known = Scores("known", values), Evidence([(name, head) for name in sites for head in range(4)])
    judge = Judge(SimpleNamespace(judge=lambda *_: None), Corpus([]))
    with pytest.raises(BadInput) as told:
        decide(Recipe.from_text(text), Calibration(model, sites, []), known, {}, judge, scores=scores)
    assert str(told.value) == (
        "reach: there is no first step: the first that the score gives up (1, earlier cuts included) come to "
        f"{160 / total:.4g} of the parameters, and remove allows {140 / total:.4g}; allow more, or keep these heads"
    )
