"""What stands around a model – compiled code, modules, adapters, gates, quantised weights – is seen through, or refused."""

import copy

import pytest
import torch
from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import contexts, gated
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint import load, save
from headwise.prune.surgery import cut
from tests.families import FAMILIES
from tests.models import build, inputs_of

FIRST, THEN = {"0": [1], "1": [0, 3]}, {"0": [2]}


class Around(nn.Module):
    """A module of one's own around a model; it has no configuration."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **inputs):
        return self.inner(**inputs)


def run(model, name="bert"):
    with torch.no_grad():
        return model(**inputs_of(FAMILIES[name]))[0]


def silenced(model, heads, called=None, name="bert"):
    with gated(model, heads):
        return run(model if called is None else called, name)


def compiled(model, how):
    """The model as its user calls it, compiled and used once, so that its code is there."""
    torch._dynamo.reset()
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.forward = torch.compile(model.forward, backend="eager")
    run(model)
    return model


# ------------------------------------------------------------------------------------------------ compiled code
@pytest.mark.parametrize("how", ["wrapped", "in place", "forward"])
def test_gates_reach_a_model_that_was_compiled_before(how):
    dense = build(FAMILIES["bert"])
    want, plain = silenced(dense, FIRST), run(dense)
    model = build(FAMILIES["bert"])
    called = compiled(model, how)
    torch.testing.assert_close(silenced(model, FIRST, called), want)
    torch.testing.assert_close(silenced(called, FIRST), want)
    torch.testing.assert_close(run(called), plain)
    with contexts(model) as seen:
        run(called)
    assert [len(found) for found in seen.values()] == [1] * len(seen)


def test_code_compiled_while_heads_are_silenced_does_not_keep_the_gates():
    model = build(FAMILIES["bert"])
    plain = run(model)
    torch._dynamo.reset()
    called = torch.compile(model, backend="eager")
    assert not torch.allclose(silenced(model, FIRST, called), plain)
    torch.testing.assert_close(run(called), plain)


@pytest.mark.parametrize("name", ["bert", "bloom"])  # by shapes alone; and by hooks that came later
def test_a_compiled_model_is_cut_through(name):
    want = run(cut(build(FAMILIES[name]), plan := {next(iter(find_sites(build(FAMILIES[name])))): [0, 2]}), name)
    torch._dynamo.reset()
    model = torch.compile(build(FAMILIES[name]), backend="eager")
    run(model, name)
    assert cut(model, plan) is model
    torch.testing.assert_close(run(model, name), want)


# ------------------------------------------------------------------------------------------------ modules around a model
@pytest.mark.parametrize("around", [Around, nn.DataParallel, lambda model: torch.compile(model, backend="eager"),
                                    lambda model: nn.Sequential(Around(model))])  # fmt: skip
def test_heads_of_a_cut_model_keep_their_numbers_inside_another_module(around):
    model = cut(build(FAMILIES["bert"]), FIRST)
    want = silenced(model, THEN)
    outer = around(model)
    assert [(name, site.heads, site.kept) for name, site in find_sites(outer).items()] == [
        (name, site.heads, site.kept) for name, site in find_sites(model).items()
    ]
    torch.testing.assert_close(silenced(model, THEN), want)
    with gated(outer, THEN):
        torch.testing.assert_close(run(model), want)


def test_a_cut_part_beside_another_is_refused_since_each_counts_its_own_heads():
    both = nn.ModuleDict({"a": cut(build(FAMILIES["bert"]), FIRST), "b": build(FAMILIES["bert"])})
    with pytest.raises(BadInput, match=r"a was cut by headwise, and b\.bert\..* beside it .* one at a time"):
        find_sites(both)
    assert find_sites(both["a"])["0"].kept == (0, 2, 3)


def test_a_module_without_configuration_is_not_cut_and_it_is_said_what_is():
    with pytest.raises(BadInput, match="cut the model inside it, 'inner'"):
        cut(Around(build(FAMILIES["bert"])), FIRST)
    with pytest.raises(BadInput, match="Around is no model of transformers; save the model inside it"):
        save(Around(build(FAMILIES["bert"])), "never")


# ------------------------------------------------------------------------------------------------ gates
@pytest.mark.parametrize("name", ["bert", "wavlm"])
def test_what_writes_or_cuts_weights_is_refused_while_gates_are_set(name, tmp_path):
    model = build(FAMILIES[name])
    site = next(iter(find_sites(model)))
    with torch.no_grad(), gated(model, {site: [1]}):
        twin = copy.deepcopy(model)
        for act in (lambda: save(model, tmp_path / "out"), lambda: cut(model, {site: [0]})):
            with pytest.raises(BadInput, match="silenced by `gated`, which changes no weight"):
                act()
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInput, match="of a copy"):  # it keeps the hooks for good
        save(twin, tmp_path / "out")
    save(model, tmp_path / "out")


# ------------------------------------------------------------------------------------------------ adapters, quantised weights
class Packed(torch.Tensor):
    """A tensor of another kind, as libraries of quantisation or of spread weights have them."""


def packed(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.data.as_subclass(Packed), requires_grad=False)
    return model


def test_rows_of_packed_weights_are_not_cut_and_not_saved(tmp_path):
    model = packed(build(FAMILIES["bert"]))
    assert list(find_sites(model)) == ["0", "1"]  # to look at them is another thing
    with pytest.raises(BadInput, match=r"query\.weight is kept as Packed, of which no rows can be cut: cut first"):
        cut(model, FIRST)
    for kind in (model, packed(cut(build(FAMILIES["bert"]), FIRST))):
        with pytest.raises(BadInput, match=r"is quantised \(Packed\) in a way that a checkpoint does not tell"):
            save(kind, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_adapters_around_a_cut_model_are_noticed_and_not_left_out_of_a_checkpoint(tmp_path):
    peft = pytest.importorskip("peft")
    model = cut(build(FAMILIES["bert"]), FIRST)
    adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(BadInput, match="wrapped by an adapter"):
        find_sites(adapted)
    with pytest.raises(BadInput, match="merge_and_unload"):
        save(adapted, tmp_path / "out")
    save(adapted.merge_and_unload(), tmp_path / "out")
    torch.testing.assert_close(run(load(tmp_path / "out")), run(model))
