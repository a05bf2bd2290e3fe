"""Numbers that are none: told with where they come from, never handed on to sums, solvers and weights."""

import numpy as np
import pytest
import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.recovery.training import Towards
from headwise.prune.selection import AdditiveCosts, blocks_of
from tests.prune.importance_scene import Labels, batched, calibration, flat, made

VALUES = {"bert": "bert.encoder.layer.1.attention.self.value.weight", "llama": "model.layers.1.self_attn.v_proj.weight"}
REPAIRS = [
    COMPENSATIONS["bias"](),
    COMPENSATIONS["scale"](),
    COMPENSATIONS["reconstruction"](correct="none", values="keep"),
    COMPENSATIONS["reconstruction"](correct="outputs", values="keep"),
    COMPENSATIONS["reconstruction"](correct="none", values="refit"),
    COMPENSATIONS["sequential"](target="output"),
    COMPENSATIONS["sequential"](target="stream"),
]


def broken(name, number):
    """A model whose last block gives no numbers, or such whose squares are none."""
    model = made(name, torch.float32)
    model.get_parameter(VALUES[name]).data[0] = number
    return model


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("repair", REPAIRS, ids=str)
def test_a_repair_tells_the_text_and_writes_nothing(repair, name, number):
    model = broken(name, number)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.raises(BadInput, match=r"not finite for the text '42 32 26'.*; leave it out, or use float32"):
        repair.repair(calibration(model), {"1": [1]})
    assert all(np.array_equal(p.detach(), before[n], equal_nan=True) for n, p in model.named_parameters())


@pytest.mark.parametrize("kind", ["ablation", "activation", "variance", "gradient", "fisher", "taylor2"])
def test_a_score_tells_the_text(kind):
    with pytest.raises(BadInput, match="not finite for the text '42 32 26'"):
        SCORES[kind]().score(calibration(broken("bert", float("nan"))))


def test_a_loss_that_is_none_without_one_head_names_the_head():
    class Fragile(Labels):
        def losses(self, model, batch):
            found = super().losses(model, batch)
            self.first = getattr(self, "first", found)
            return found if torch.equal(found, self.first) else found / 0

    model = made("bert")
    context = Calibration(model, find_sites(model), batched(12), Fragile())
    with pytest.raises(BadInput, match="score ablation: the loss without head 0 of site 0: not finite for the text"):
        SCORES["ablation"]().score(context)


def test_a_gradient_that_is_none_is_told_though_the_loss_is_a_number():
    class Kinked(Labels):
        def losses(self, model, batch):
            found = super().losses(model, batch)
            return found + (found - found.detach()).abs().sqrt()

    model = made("bert")
    with pytest.raises(BadInput, match="site 1: the loss's gradient at its contexts: not finite"):
        SCORES["gradient"]().score(Calibration(model, find_sites(model), batched(), Kinked()))


def test_scores_that_are_none_are_told_to_who_chooses_by_them():
    site = find_sites(made("bert"))["0"]
    with pytest.raises(BadInput, match="site '0': heads 2 have no finite score"):
        AdditiveCosts({"0": np.array([1.0, 2.0, np.nan, 3.0])}).start(blocks_of({"0": site})["0"])


def infinite_at_padding(model):
    """As some kernels leave it: what stands at padding is anything."""
    said = {}
    model.register_forward_pre_hook(
        lambda _, args, inputs: said.update(real=inputs["attention_mask"].bool()), with_kwargs=True
    )
    last = model.get_submodule(find_sites(model)["1"].output)
    last.register_forward_pre_hook(lambda _, args: (args[0].masked_fill(~said["real"].unsqueeze(-1), torch.inf),))
    return model


@pytest.mark.parametrize("score", [SCORES["gradient"](), SCORES["reconstruction"](weight="gradient", loss="labels")])
def test_what_stands_at_padding_does_not_count_whatever_it_is(score):
    """At the last block, whose padded rows nothing reads."""

    def on(model):
        return calibration(model, batched(12)), {"1": find_sites(model)["1"]}

    found = []
    for change in (lambda model: model, infinite_at_padding):
        context, sites = on(change(made("bert")))
        context.sites = sites
        found.append(flat(score.score(context)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("loss", ["outputs", "predictions"])
def test_outputs_at_padding_do_not_count_whatever_they_are(loss):
    found = []
    for junk in (0.0, torch.inf):
        model = made("gpt2")

        def spoil(_module, _args, inputs, output, junk=junk):
            output.logits = output.logits.masked_fill(~inputs["attention_mask"].bool().unsqueeze(-1), junk)
            return output

        model.register_forward_hook(spoil, with_kwargs=True)
        found.append(flat(SCORES["ablation"](loss=loss).score(calibration(model, batched(12)))))
    assert np.isfinite(found[1]).all()
    np.testing.assert_array_equal(*found)


def test_hidden_states_at_padding_do_not_count_in_a_distillation():
    model, batch = made("bert", torch.float32), batched(12)[0]
    other = made("bert", torch.float32)
    other.get_parameter(VALUES["bert"]).data.mul_(0.5)
    apart = Towards(model, 1.0)(other, batch)
    real = batch.tokens[""].valid.unsqueeze(-1)

    def spoil(_module, _args, output):
        states = output.hidden_states
        output.hidden_states = (*states[:-1], states[-1].masked_fill(~real, torch.nan))
        return output

    other.register_forward_hook(spoil)
    assert torch.equal(Towards(model, 1.0)(other, batch), apart)
