"""The contract of every attention family: found, gated, cut, generated from, trained, refused, saved, opened."""

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

from headwise.analysis.errors import BadInput, CannotCut
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint import load, save
from headwise.prune.surgery import cut
from tests.families import FAMILIES, Family
from tests.models import build, inputs_of, oracle, plans, projection

RELEASE = Version(transformers.__version__)
HERE = [family for family in FAMILIES.values() if Version(family.since) <= RELEASE]
CUTTABLE = [family for family in HERE if not family.refused(transformers.__version__)]
REFUSED = [family for family in HERE if family not in CUTTABLE]
GENERATING = [family for family in CUTTABLE if family.generates]
OUTPUTS = ("logits", "logits_per_text", "pooler_output", "last_hidden_state")


def each(families):
    return pytest.mark.parametrize("family", families, ids=lambda family: family.name)


def main_plan(family: Family):
    found = plans(family)
    return found.get("unequal") or found["uneven"]


def tensors(model, inputs):
    output = model(**inputs)
    return [t for name in OUTPUTS if isinstance(t := getattr(output, name, None), torch.Tensor)]


def run(model, inputs):
    with torch.no_grad():
        return torch.cat([tensor.flatten().double() for tensor in tensors(model, inputs)])


def apart(want, got):
    """The largest difference of two outputs in units of the larger one's scale."""
    assert want.shape == got.shape
    assert torch.isfinite(got).all()
    return ((want - got).abs().max() / want.abs().max().clamp(min=1.0)).item()


def hooks(model):
    return [(name, len(m._forward_hooks), len(m._forward_pre_hooks), type(m)) for name, m in model.named_modules()]


def switch(model, kernel):
    """Put a model on a kernel and make sure that every attention module follows."""
    with contextlib.suppress(Exception):
        model.set_attn_implementation(kernel)
    if model.config._attn_implementation != kernel:
        model.config._attn_implementation = kernel
    for name, module in model.named_modules():
        if "ttention" in type(module).__name__ and hasattr(module, "config"):
            assert getattr(module.config, "_attn_implementation", kernel) == kernel, f"{name} did not follow"
    return model


def kernels(model):
    return ["eager", "sdpa"] if getattr(model, "_supports_sdpa", False) else ["eager"]


def eager_experts(model):
    """The grouped kernel of mixtures of experts has no float64."""
    with contextlib.suppress(Exception):
        model.set_experts_implementation("eager")
    return model


# ------------------------------------------------------------------------------------------------ found and gated
@each(HERE)
def test_sites_are_found_in_order_with_their_heads(family):
    found = {name: (site.heads, site.kv_heads, len(site.kept)) for name, site in find_sites(build(family)).items()}
    assert found == {site.name: (site.heads, site.kv, site.heads) for site in family.sites}
    assert list(found) == [site.name for site in family.sites]


@each(HERE)
def test_a_gate_is_the_oracle_and_leaves_nothing_behind(family):
    model, inputs, remove = build(family), inputs_of(family), main_plan(family)
    # The first pass may make transformers hang up its own recorders of hidden states (LLaVA).
    before, dense, hooked = copy.deepcopy(model.state_dict()), run(model, inputs), hooks(model)
    kernel = model.config._attn_implementation
    want = run(oracle(model, family, remove), inputs)
    assert apart(want, dense) > 1e-4, "removing these heads changes nothing: the test would be blind"
    with gated(model, remove):
        assert apart(want, run(model, inputs)) < 1e-5
    with pytest.raises(KeyboardInterrupt), gated(model, remove):
        raise KeyboardInterrupt
    assert hooks(model) == hooked
    assert model.config._attn_implementation == kernel
    assert not model.training
    assert torch.equal(run(model, inputs), dense)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# ------------------------------------------------------------------------------------------------ cut
@each(CUTTABLE)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"])
def test_a_cut_is_the_oracle_and_smaller(family, dtype, limit):
    dense = eager_experts(build(family, dtype))
    inputs, remove = inputs_of(family, dtype), plans(family)["first" if "first" in plans(family) else "uneven"]
    if not works(lambda: run(dense, inputs)):
        pytest.skip(f"the dense {type(dense).__name__} of this release does not run in {dtype}")
    smaller = cut(copy.deepcopy(dense), remove)
    assert apart(run(oracle(dense, family, remove), inputs), run(smaller, inputs)) < limit
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in dense.parameters())


@each(CUTTABLE)
def test_a_cut_keeps_what_the_weights_were(family):
    dense = build(family, torch.bfloat16).train()
    frozen = [name for i, name in enumerate(dict(dense.named_parameters())) if i % 3 == 0]
    for name in frozen:
        dense.get_parameter(name).requires_grad_(False)
    twin = copy.deepcopy(dense)
    cut(dense, main_plan(family))
    now = dict(dense.named_parameters())
    for name, before in twin.named_parameters():
        if ".norms." in name:
            continue  # StableLM keeps a list of one norm per head, whose members move up
        assert (now[name].dtype, now[name].requires_grad) == (torch.bfloat16, before.requires_grad)
    for name, after in now.items():
        # T5's blocks get their own table: such a new parameter is as trainable as the one it was copied from.
        assert after.is_contiguous(), name
    assert all(module.training for module in dense.modules())
    ties = lambda model: {(a, b) for a, x in model.named_parameters(remove_duplicate=False)  # noqa: E731
                          for b, y in model.named_parameters(remove_duplicate=False) if a < b and x is y}  # fmt: skip
    assert ties(twin) <= ties(dense)


@each(CUTTABLE)
def test_cutting_twice_is_cutting_once(family):
    model, inputs = build(family), inputs_of(family)
    if family.calls > 1:
        first, second = ({site.name: [head] for site in family.sites} for head in (1, 3))
    else:
        start = family.sites[0]
        first = {start.name: [0]}
        second = {site.name: [1 if site.heads > 2 else 0] for site in family.sites[1:] or family.sites}
        if start.heads > 2:
            second[start.name] = [1]
    union = {name: sorted({*first.get(name, []), *second.get(name, [])}) for name in {**first, **second}}
    once = run(cut(copy.deepcopy(model), union), inputs)
    twice = cut(cut(copy.deepcopy(model), first), second)
    got = run(twice, inputs)
    assert apart(once, got) < 1e-5
    assert apart(run(oracle(model, family, union), inputs), got) < 1e-5
    size = sum(p.numel() for p in twice.parameters())
    assert torch.equal(run(cut(twice, second), inputs), got)
    assert sum(p.numel() for p in twice.parameters()) == size
    found = find_sites(twice)
    assert {name: site.heads for name, site in found.items()} == {site.name: site.heads for site in family.sites}
    for site in family.sites:
        assert found[site.name].kept == tuple(h for h in range(site.heads) if h not in union.get(site.name, []))


@each(HERE)
def test_a_bad_plan_raises_and_changes_nothing(family):
    model, inputs = build(family), inputs_of(family)
    first, last = family.sites[0], family.sites[-1]
    dense, hooked = run(model, inputs), hooks(model)
    for bad in ({first.name: [first.heads]}, {first.name: [-1]}, {"no.such.site.7": [0]},
                {first.name: [0], last.name: [99]}):  # fmt: skip
        with pytest.raises(BadInput):
            cut(model, bad)
        assert hooks(model) == hooked
        assert torch.equal(run(model, inputs), dense)


@each(REFUSED)
def test_a_refusal_names_its_reason_and_changes_nothing(family):
    model, inputs = build(family), inputs_of(family)
    dense = run(model, inputs)
    with pytest.raises(CannotCut, match=family.refused(transformers.__version__)):
        cut(model, main_plan(family))
    assert torch.equal(run(model, inputs), dense)
    assert getattr(model.config, "headwise", None) is None


@each(CUTTABLE)
def test_a_cut_model_trains_and_copies(family):
    inputs = inputs_of(family)
    dense, remove = build(family), main_plan(family)
    smaller = cut(copy.deepcopy(dense), remove)
    assert torch.equal(run(copy.deepcopy(smaller), inputs), run(smaller, inputs))
    reached = []
    for model in (dense, smaller):
        model.train()
        for part in (*model.modules(), *(m.config for m in model.modules() if hasattr(m, "config"))):
            # Layers that are left out by chance have no gradient.
            for name in [name for name in vars(part) if name.endswith("layerdrop")]:
                setattr(part, name, 0.0)
        tensors(model, inputs)[0].float().pow(2).mean().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        assert all(torch.isfinite(g).all() for g in gradients.values() if g is not None)
        reached.append({name for name, g in gradients.items() if g is not None})
    lost = {name for name in reached[0] - reached[1] if ".norms." not in name}
    assert not lost, f"no gradient reaches {sorted(lost)[:3]}"


# ------------------------------------------------------------------------------------------------ generation
def generate(model, family, inputs=None, **how):
    inputs = inputs or inputs_of(family)
    if "decoder_input_ids" in inputs:
        given = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    else:
        given = {name: value[:, :6] for name, value in inputs.items()}
    torch.manual_seed(0)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": 1, "disable_compile": True,
               "return_dict_in_generate": True, "output_logits": True}  # fmt: skip
    found = model.generate(**given, **{**options, **how})
    return found.sequences, torch.stack(found.logits).double()


def same_tokens(dense, smaller, remove, family, inputs=None, **how):
    with gated(dense, remove):
        want, logits = generate(dense, family, inputs, **how)
    got, cut_logits = generate(smaller, family, inputs, **how)
    assert torch.equal(want, got), how
    assert apart(logits, cut_logits) < 1e-4, how


def padded_left(family):
    inputs = inputs_of(family)
    ids, mask = inputs["input_ids"].clone(), torch.ones_like(inputs["input_ids"])
    mask[1, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def in_chunks(model, family):
    """Prefill a left-padded batch, then three more tokens at once."""
    inputs = padded_left(family)
    ids, mask = inputs["input_ids"][:, :9], inputs["attention_mask"][:, :9]
    with torch.no_grad():
        before = model(input_ids=ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        after = model(input_ids=ids[:, 6:], attention_mask=mask, use_cache=True, past_key_values=before.past_key_values)
    return after.logits.double()


def works(action):
    """Whether the dense model can do it at all."""
    try:
        action()
    except Exception:
        return False
    return True


@each(GENERATING)
def test_generation_is_that_of_the_gated_model(family):
    # An emptied first site is the hard case: its ghost keeps the length of every cache.
    dense, remove = build(family), plans(family)["first"]
    smaller = cut(copy.deepcopy(dense), remove)
    same_tokens(dense, smaller, remove, family, use_cache=False)
    same_tokens(dense, smaller, remove, family, use_cache=True)

    if dense._can_compile_fullgraph and works(lambda: generate(dense, family, cache_implementation="static")):
        same_tokens(dense, smaller, remove, family, cache_implementation="static")
    beams = {"num_beams": 3, "num_return_sequences": 3}
    with gated(dense, remove):
        want = generate(dense, family, **beams)[0]
    assert torch.equal(want, generate(smaller, family, **beams)[0])
    if family.inputs == "text":
        same_tokens(dense, smaller, remove, family, padded_left(family), use_cache=True)
        if works(lambda: in_chunks(dense, family)):
            with gated(dense, remove):
                want = in_chunks(dense, family)
            assert apart(want, in_chunks(smaller, family)) < 1e-4


# ------------------------------------------------------------------------------------------------ saved and opened
def reload_all(folder):
    """Run in a new process: open every checkpoint below a folder and compare with what was written beside it."""
    wrong = {}
    for place in sorted(Path(folder).iterdir()):
        if not place.is_dir():
            continue
        family = FAMILIES[place.name]
        try:
            model = load(place)
            want = torch.load(place.with_suffix(".pt"))
            if not torch.equal(run(model, inputs_of(family)), want):
                wrong[place.name] = "other numbers"
        except Exception as error:
            wrong[place.name] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            getattr(transformers, family.auto).from_pretrained(place)
            wrong[place.name] = "a plain from_pretrained opened it"
    return wrong


@pytest.mark.parametrize("part", range(2))
def test_a_saved_model_opens_in_a_new_process_bit_for_bit(part, tmp_path):
    for family in CUTTABLE[part::2]:
        smaller = cut(build(family), main_plan(family))
        save(smaller, tmp_path / family.name)
        torch.save(run(smaller, inputs_of(family)), tmp_path / f"{family.name}.pt")
    code = ("import tests.conftest, json, sys; from tests.test_families import reload_all; "
            "print('FOUND ' + json.dumps(reload_all(sys.argv[1])))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True,
                          cwd=Path(__file__).parents[1], check=False)  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-2000:]
    assert json.loads(line[6:]) == {}


# ------------------------------------------------------------------------------------------------ all of it
#: How far gate and cut may be apart in what precision.
PRECISIONS = {torch.float32: 1e-5, torch.float64: 1e-10}
#: The mask of the stock model holds no float64 in the first releases of transformers 5: the dense model does not run.
NOT_IN_FLOAT64 = {"mpt"} if transformers.__version__.startswith("5.0.") else set()


@pytest.mark.slow
@each(CUTTABLE)
def test_every_plan_on_every_kernel_in_every_precision(family):
    for dtype, limit in PRECISIONS.items():
        if dtype == torch.float64 and family.name in NOT_IN_FLOAT64:
            with pytest.raises(RuntimeError, match="without overflow"):
                run(build(family, dtype), inputs_of(family, dtype))
            continue
        dense, inputs = eager_experts(build(family, dtype)), inputs_of(family, dtype)
        for name, remove in plans(family).items():
            smaller = cut(copy.deepcopy(dense), remove)
            for kernel in kernels(dense):
                want = run(oracle(switch(dense, kernel), family, remove), inputs)
                # The kernel is switched after the cut: a copied configuration would stay behind.
                assert apart(want, run(switch(smaller, kernel), inputs)) < limit, (name, kernel, dtype)
            switch(dense, "eager")


@pytest.mark.slow
@each(GENERATING)
def test_every_plan_generates_on_every_kernel(family):
    for name, remove in plans(family).items():
        if name == "last":
            continue
        dense = build(family)
        smaller = cut(copy.deepcopy(dense), remove)
        for kernel in kernels(dense):
            switch(dense, kernel)
            switch(smaller, kernel)
            same_tokens(dense, smaller, remove, family, use_cache=False)
            same_tokens(dense, smaller, remove, family, use_cache=True)


@pytest.mark.slow
@each(CUTTABLE)
def test_every_plan_saves_and_opens(family, tmp_path):
    inputs = inputs_of(family)
    for name, remove in plans(family).items():
        smaller = cut(build(family), remove)
        want = run(smaller, inputs)
        assert torch.equal(run(load(save(smaller, tmp_path / name)), inputs), want), name


@each(HERE)
def test_the_oracle_knows_the_projections(family):
    model, found = build(family), find_sites(build(family))
    for site in family.sites:
        module, _ = projection(model, site.output)
        path = found[site.name].output.partition(":")[0]
        assert model.get_submodule(path) is module
