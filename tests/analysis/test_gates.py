"""Gates: scale or silence, differentiate, give back; and the watch that every hook fires."""

import contextlib

import pytest
import torch
from torch import nn

from headwise.analysis.errors import BadInput, HeadwiseError
from headwise.analysis.gates import check_heads, contexts, gated
from headwise.analysis.gates.selftest import self_test
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from tests.families import FAMILIES
from tests.models import build, inputs_of, oracle

ODD = ["albert", "xlnet", "siglip-vision", "wavlm", "gpt2", "t5", "longformer", "deepseek-v3"]


def run(model, name, dtype=torch.float64):
    output = model(**inputs_of(FAMILIES[name], dtype))
    found = [getattr(output, name, None) for name in ("logits", "pooler_output", "last_hidden_state")]
    return next(tensor for tensor in found if tensor is not None)


@pytest.mark.parametrize("name", ODD)
def test_gates_of_zero_are_removed_heads_and_gates_of_one_are_none(name):
    family = FAMILIES[name]
    model = build(family, torch.float64)
    with contextlib.suppress(Exception):
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    remove = {site.name: [1, 2] for site in family.sites}
    zeros = {site.name: torch.ones(site.heads) for site in family.sites}
    for gate in zeros.values():
        gate[[1, 2]] = 0
    with torch.no_grad():
        want, dense = run(oracle(model, family, remove), name), run(model, name)
        with gated(model, gates=zeros):
            torch.testing.assert_close(run(model, name), want)
        with gated(model, gates={site.name: torch.ones(site.heads) for site in family.sites}):
            assert torch.equal(run(model, name), dense)
        assert torch.equal(run(model, name), dense)


@pytest.mark.parametrize("name", ["bert", "gpt2", "xlnet", "siglip-vision", "albert"])
def test_the_gradient_of_a_gate_is_the_slope_of_the_loss(name):
    family = FAMILIES[name]
    model = build(family, torch.float64)
    site = family.sites[-1]
    gate = torch.ones(site.heads, dtype=torch.float64, requires_grad=True)
    with gated(model, gates={site.name: gate}):
        run(model, name).pow(2).sum().backward()
    step = 1e-6
    for head in range(site.heads):
        losses = []
        for sign in (1, -1):
            moved = torch.ones(site.heads, dtype=torch.float64)
            moved[head] += sign * step
            with torch.no_grad(), gated(model, gates={site.name: moved}):
                losses.append(run(model, name).pow(2).sum())
        assert gate.grad[head].item() == pytest.approx((losses[0] - losses[1]).item() / (2 * step), rel=1e-4, abs=1e-6)


def test_gates_nest_and_multiply():
    model = build(FAMILIES["bert"], torch.float64)
    half = {"0": torch.full((4,), 0.5)}
    with torch.no_grad():
        with gated(model, gates={"0": torch.full((4,), 0.25)}):
            want = run(model, "bert")
        with gated(model, gates=half), gated(model, gates=half):
            torch.testing.assert_close(run(model, "bert"), want)
        with gated(model, {"0": [2]}, gates={"0": torch.tensor([1.0, 1, 5, 1])}):
            both = run(model, "bert")
        with gated(model, {"0": [2]}):
            torch.testing.assert_close(run(model, "bert"), both)


def test_calls_of_one_module_are_gated_apart():
    model = build(FAMILIES["albert"], torch.float64)
    with torch.no_grad():
        outputs = []
        for plan in ({"0": [1]}, {"1": [1]}, {"0": [1], "1": [1]}):
            with gated(model, plan):
                outputs.append(run(model, "albert"))
                assert torch.equal(run(model, "albert"), outputs[-1]), "the second pass counts its calls afresh"
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


@pytest.mark.parametrize(("call", "told"), [
    (lambda m: gated(m, {"7": [0]}), "no site '7'"), (lambda m: gated(m, {"0": [4]}), "no head 4"),
    (lambda m: gated(m, {"0": [0, 0]}), "named twice"), (lambda m: gated(m, {"0": [True]}), "no head"),
    (lambda m: gated(m, gates={"0": torch.ones(3)}), r"expected \[4\]"), (lambda m: gated(m, gates={"x": torch.ones(4)}), "no site"),
])  # fmt: skip
def test_bad_gates_are_refused_before_a_hook_is_hung(call, told):
    model = build(FAMILIES["bert"])
    with pytest.raises(BadInput, match=told), call(model):
        pass
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_all_mistakes_are_told_at_once():
    sites = find_sites(build(FAMILIES["bert"]))
    with pytest.raises(BadInput, match=r"no site 'x'.*no head 9"):
        check_heads(sites, {"x": [0], "1": [9]})


def test_a_misspelt_site_is_asked_about():
    with pytest.raises(BadInput, match=r"no site 'decoder\.cros\.1'; did you mean 'decoder\.cross\.1'"):
        check_heads(find_sites(build(FAMILIES["t5"])), {"decoder.cros.1": [1]})


def test_a_projection_that_is_read_without_being_called_is_noticed():
    """As torch's own fast path does: the hook would never fire, and the head would seem to do nothing."""
    model = build(FAMILIES["bert"])
    output = model.bert.encoder.layer[0].attention.output

    class Reading(type(output)):
        def forward(self, hidden_states, input_tensor):
            hidden_states = nn.functional.linear(hidden_states, self.dense.weight, self.dense.bias)
            return self.LayerNorm(hidden_states + input_tensor)

    output.__class__ = Reading
    with pytest.raises(HeadwiseError, match="was never called"), gated(model, {"0": [1]}):
        run(model, "bert", torch.float32)


def test_contexts_times_the_projection_are_the_output():
    model = build(FAMILIES["llama"], torch.float64)
    sites = find_sites(model)
    outputs = []
    handle = model.get_submodule(sites["0"].output).register_forward_hook(lambda *seen: outputs.append(seen[2]))
    with torch.no_grad(), contexts(model, sites) as seen:
        run(model, "llama")
    handle.remove()
    weight, bias = output_weight(model, sites["0"]), output_bias(model, sites["0"])
    torch.testing.assert_close(seen["0"][0] @ weight.T + (0 if bias is None else bias), outputs[0])
    assert output_weight(build(FAMILIES["gpt2"]), find_sites(build(FAMILIES["gpt2"]))["0"]).shape == (32, 32)


def test_contexts_that_cannot_be_seen_are_named():
    model = build(FAMILIES["wavlm"])
    with pytest.raises(BadInput, match="leave these sites out"), contexts(model):
        pass


# ------------------------------------------------------------------------------------------------ the self-test
@pytest.mark.parametrize("name", ["bert", "xlnet", "siglip-vision", "wavlm", "t5", "llava"])
def test_the_gates_of_every_site_pass_the_self_test(name):
    family = FAMILIES[name]
    model = build(family).train()
    assert set(self_test(model, inputs_of(family), every=True)) == {site.name for site in family.sites}
    assert all(module.training for module in model.modules())


def test_the_self_test_catches_heads_that_go_nowhere():
    model = build(FAMILIES["bert"])
    layer = model.bert.encoder.layer[0].attention.output

    class Deaf(type(layer)):
        def forward(self, hidden_states, input_tensor):
            return self.LayerNorm(self.dense(hidden_states) * 0 + input_tensor)

    layer.__class__ = Deaf
    with pytest.raises(HeadwiseError, match="site 0: silencing all its heads changes no output"):
        self_test(model, every=True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
