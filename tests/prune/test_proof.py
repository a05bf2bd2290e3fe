"""The proof: passes for a right cut, fails for a wrong one, changes neither model."""

import copy

import pytest
import torch

from headwise.analysis.errors import BadInput, ProofFailed
from headwise.prune.proof import prove, require
from headwise.prune.surgery import cut
from tests.families import FAMILIES
from tests.models import build, cuttable, inputs_of, plans


def hooks(model):
    return [(name, len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()]


def proven(name, dense, smaller, remove):
    return prove(dense, smaller, remove, [inputs_of(FAMILIES[name])])


@pytest.mark.parametrize("name", ["bert", "albert", "xlnet", "siglip-vision", "t5", "olmo2", "bloom", "falcon-alibi",
                                  "llama", "gemma3", "gpt-oss", "mpnet", "beit-shared", "swin", "whisper", "clip"])  # fmt: skip
def test_a_right_cut_is_proven_at_every_site(name):
    family = cuttable(name)
    dense, remove = build(family), plans(family).get("unequal") or plans(family)["uneven"]
    smaller = cut(copy.deepcopy(dense), remove)
    before = [(copy.deepcopy(model.state_dict()), hooks(model)) for model in (dense, smaller)]
    proof = proven(name, dense, smaller, remove)
    require(proof)
    assert proof["passed"]
    assert set(proof["sites"]) == {site.name for site in family.sites}
    assert proof["worst"] <= proof["limit"]
    assert proof["bfloat16"]["worst"] <= proof["bfloat16"]["limit"]
    for (state, hooked), model in zip(before, (dense, smaller), strict=True):
        assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
        # OLMo 2's cut norms keep a hook of their own: nothing beside it may stay.
        assert hooks(model) == hooked


def test_another_head_than_planned_is_not_proven():
    dense = build(FAMILIES["bert"])
    smaller = cut(copy.deepcopy(dense), {"0": [2], "1": [1]})
    proof = proven("bert", dense, smaller, {"0": [1], "1": [1]})
    assert not proof["passed"]
    assert proof["sites"]["0"] > 1e-2
    assert proof["sites"]["1"] <= proof["limit"], "the fault of one site does not show at another"
    with pytest.raises(ProofFailed, match="site 0"):
        require(proof)


def test_a_wrong_row_is_not_proven():
    dense = build(FAMILIES["gpt-neox"])
    smaller = cut(copy.deepcopy(dense), {"1": [0]})
    rows = smaller.gpt_neox.layers[1].attention.query_key_value.weight
    with torch.no_grad():
        rows.copy_(rows.roll(8, dims=0))
    assert proven("gpt-neox", dense, smaller, {"1": [0]})["sites"]["1"] > 1e-2


def test_broken_numbers_are_not_proven():
    dense = build(FAMILIES["bert"])
    smaller = cut(copy.deepcopy(dense), {"0": [1]})
    with torch.no_grad():
        smaller.bert.encoder.layer[0].attention.output.dense.weight[0, 0] = torch.nan
    assert not proven("bert", dense, smaller, {"0": [1]})["passed"]


def test_nothing_is_proven_where_the_model_itself_gives_no_numbers():
    dense = build(FAMILIES["bert"])
    with torch.no_grad():
        dense.bert.encoder.layer[0].attention.output.dense.bias.fill_(torch.nan)
    smaller = cut(copy.deepcopy(dense), {"1": [1]})
    with pytest.raises(BadInput, match=r"site 0: .*nothing but NaN or infinity"):
        proven("bert", dense, smaller, {"1": [1]})


def test_a_site_that_no_input_reaches_is_not_proven():
    dense = build(FAMILIES["llava"])
    remove = {"vision.self.0": [1], "text.self.0": [0, 1]}
    smaller = cut(copy.deepcopy(dense), remove)
    words = {key: value for key, value in inputs_of(FAMILIES["llava"]).items() if key != "pixel_values"}
    words["input_ids"] = words["input_ids"].clamp(max=90)
    proof = prove(dense, smaller, remove, [words])
    assert proof["sites"]["vision.self.0"] == float("inf")
    assert not proof["passed"]


def test_a_half_precision_model_is_proven_in_float32_and_stays_half():
    dense = build(FAMILIES["llama"], torch.bfloat16)
    smaller = cut(copy.deepcopy(dense), {"0": [0, 1], "1": [3]})
    proof = proven("llama", dense, smaller, {"0": [0, 1], "1": [3]})
    require(proof)
    assert {p.dtype for model in (dense, smaller) for p in model.parameters()} == {torch.bfloat16}
    assert proof["end_to_end"]["floor"] is not None


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_the_rounding_between_kernels_is_not_that_of_padding_before_a_text(name):
    dense, inputs = build(FAMILIES[name]), inputs_of(FAMILIES[name])
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    smaller = cut(copy.deepcopy(dense), {"0": [0, 1]})
    ends = prove(dense, smaller, {"0": [0, 1]}, [inputs])["end_to_end"]
    assert ends["kernels"] == "sdpa against eager"
    assert ends["difference"] < 1e-4
    assert ends["floor"] < 1e-4
