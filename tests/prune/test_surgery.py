"""Cuts: decisions, all-or-nothing, layouts that are not known, models that cannot be cut."""

import copy
import logging
import re
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from torch import nn

from headwise.analysis.errors import BadInput, CannotCut
from headwise.analysis.gates import gated
from headwise.analysis.sites import families, find_sites
from headwise.prune.plan import Plan
from headwise.prune.surgery import cut, rehearsal
from headwise.prune.surgery.check import check_edits
from headwise.prune.surgery.decision import decide, dense
from headwise.prune.surgery.replay import ByDistance, KeepArgument
from tests.families import FAMILIES
from tests.models import build, inputs_of, oracle

groupings = st.integers(1, 4).flatmap(lambda kv: st.tuples(st.integers(1, 4).map(lambda size: size * kv), st.just(kv)))


def run(model, name):
    with torch.no_grad():
        return model.eval()(**inputs_of(FAMILIES[name]))[0]


# ------------------------------------------------------------------------------------------------ decisions
@given(groupings, st.data())
def test_every_head_that_is_left_reads_its_own_keys_and_values(counts, data):
    heads, kv_heads = counts
    decision = dense(heads, kv_heads)
    gone: set[int] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        remove = data.draw(st.sets(st.integers(0, heads - 1)))
        gone |= remove
        decision = decide(decision, sorted(remove))
        assert decision.kept == tuple(head for head in range(heads) if head not in gone)
        assert len(decision.present) == max(1, len(decision.kept))
        assert len(decision.present) % len(decision.kv) == 0
        for place, head in enumerate(decision.present):
            assert decision.kv[place // decision.group_size] == head // (heads // kv_heads)


@given(groupings, st.data())
def test_whole_groups_repeat_no_key_value_head(counts, data):
    heads, kv_heads = counts
    groups = data.draw(st.sets(st.integers(0, kv_heads - 1), max_size=kv_heads - 1))
    size = heads // kv_heads
    kept = decide(dense(heads, kv_heads), [h for h in range(heads) if h // size in groups])
    assert kept.kv == tuple(g for g in range(kv_heads) if g not in groups)


# ------------------------------------------------------------------------------------------------ all or nothing
def test_a_plan_and_its_mapping_cut_alike():
    plan = Plan(model="tiny", remove={"0": [1], "1": [0, 3]})
    one, two = (cut(build(FAMILIES["bert"]), heads) for heads in (plan, {"0": [1], "1": [0, 3]}))
    assert torch.equal(run(one, "bert"), run(two, "bert"))


def test_heads_that_are_gone_are_left_alone_with_a_notice(caplog):
    model = cut(build(FAMILIES["bert"]), {"0": [1]})
    want = run(model, "bert")
    with caplog.at_level(logging.WARNING, logger="headwise"):
        cut(model, {"0": [1]})
    assert "already removed" in caplog.text
    assert torch.equal(run(model, "bert"), want)


def test_an_edit_that_does_not_fit_stops_the_cut_before_the_first(monkeypatch):
    model = build(FAMILIES["bert"])
    want = run(model, "bert")
    from headwise.prune import surgery

    made = surgery._edits

    def wrong(*args):
        edits, decisions = made(*args)
        edits[-1] = {"edit": "take", "module": "encoder.layer.1.attention.self.key", "tensor": "weight", "axis": 0,
                     "of": 32, "runs": [[0, 999]]}  # fmt: skip
        return edits, decisions

    monkeypatch.setattr(surgery, "_edits", wrong)
    with pytest.raises(BadInput, match="weight has the shape"):
        cut(model, {"0": [1], "1": [2]})
    assert torch.equal(run(model, "bert"), want)
    assert getattr(model.config, "headwise", None) is None


def test_edits_are_checked_in_their_order():
    layer = nn.Sequential(nn.Linear(4, 6))
    take = {"edit": "take", "module": "/0", "tensor": "weight", "axis": 0, "of": 6, "runs": [[0, 3]]}
    check_edits(layer, [take, {**take, "of": 3, "runs": [[1, 2]]}])
    with pytest.raises(BadInput, match="edit 1"):
        check_edits(layer, [take, take])


def test_calls_of_one_module_lose_the_same_heads():
    model = build(FAMILIES["albert"])
    with pytest.raises(CannotCut, match="one module called 2 times"):
        cut(model, {"0": [1], "1": [2]})
    with pytest.raises(CannotCut, match="one module called 2 times"):
        cut(model, {"0": [1]})


def test_a_copy_made_before_stays_dense():
    model = build(FAMILIES["t5"])
    twin, want = copy.deepcopy(model), run(model, "t5")
    cut(model, {"decoder.self.0": [0, 1]})
    assert torch.equal(run(twin, "t5"), want)


def test_a_module_with_two_names_is_cut_once():
    model = build(FAMILIES["bert"])
    model.alias = model.bert.encoder.layer[0].attention
    want = run(oracle(model, FAMILIES["bert"], {"0": [1]}), "bert")
    torch.testing.assert_close(run(cut(model, {"0": [1]}), "bert"), want)
    assert model.alias is model.bert.encoder.layer[0].attention
    assert model.alias.self.num_attention_heads == 3


# ------------------------------------------------------------------------------------------------ classes not known
def renamed(model, kind, name):
    """The same model with its attention under a class name that no table knows."""
    for module in model.modules():
        if type(module).__name__ == kind:
            module.__class__ = type(name, (type(module),), {})
    return model


def test_an_unknown_class_of_a_usual_layout_is_rehearsed_and_cut():
    model = renamed(build(FAMILIES["gpt2"]), "GPT2Attention", "NewAttention")
    want = run(oracle(model, FAMILIES["gpt2"], {"0": [1], "1": [0, 3]}), "gpt2")
    torch.testing.assert_close(run(cut(model, {"0": [1], "1": [0, 3]}), "gpt2"), want)


# A class of someone's own code may bear a known name.
@pytest.mark.parametrize("name", ["NewAttention", "GPT2Attention"])
def test_an_unknown_fused_layout_is_never_cut_wrong(name):
    model = renamed(build(FAMILIES["gpt-neox"]), "GPTNeoXAttention", name)
    before, parts = run(model, "gpt-neox"), {name: id(m) for name, m in model.named_modules()}
    with pytest.raises(CannotCut, match=f"{name} is not among the families"):
        cut(model, {"0": [1]})
    assert torch.equal(run(model, "gpt-neox"), before)
    assert parts == {name: id(m) for name, m in model.named_modules()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_unknown_table_that_is_handed_on_is_never_cut_wrong():
    model = renamed(build(FAMILIES["t5"]), "T5Attention", "NewAttention")
    before = run(model, "t5")
    with pytest.raises(CannotCut, match="cut for a try"):
        cut(model, {"encoder.self.0": [1], "encoder.self.1": [2]})
    assert torch.equal(run(model, "t5"), before)


def nothing_fits(_):
    raise BadInput("no synthetic input fits")


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "GPT2Attention"), ("bert", "BertSelfAttention")])
def test_where_no_input_runs_the_model_a_block_alone_is_rehearsed(name, kind, monkeypatch):
    monkeypatch.setattr(rehearsal, "synthetic_inputs", nothing_fits)
    model = renamed(build(FAMILIES[name]), kind, "NewAttention")
    want = run(oracle(model, FAMILIES[name], {"0": [1]}), name)
    torch.testing.assert_close(run(cut(model, {"0": [1]}), name), want)


def test_a_block_alone_finds_a_wrong_layout_too(monkeypatch):
    monkeypatch.setattr(rehearsal, "synthetic_inputs", nothing_fits)
    model = renamed(build(FAMILIES["gpt-neox"]), "GPTNeoXAttention", "NewAttention")
    with pytest.raises(CannotCut, match="cut for a try"):
        cut(model, {"0": [1]})


def test_what_cannot_be_tried_is_refused_unless_real_inputs_are_given(monkeypatch):
    monkeypatch.setattr(rehearsal, "synthetic_inputs", nothing_fits)
    monkeypatch.setattr(rehearsal, "block_inputs", lambda *_: None)
    model = renamed(build(FAMILIES["llama"]), "LlamaAttention", "NewAttention")
    with pytest.raises(CannotCut, match=r"cannot be tried out here.*inputs="):
        cut(model, {"0": [0, 1]})
    want = run(oracle(model, FAMILIES["llama"], {"0": [0, 1]}), "llama")
    got = run(cut(model, {"0": [0, 1]}, inputs=inputs_of(FAMILIES["llama"])), "llama")
    torch.testing.assert_close(got, want)


def test_modules_with_one_tied_weight_lose_no_heads():
    model = build(FAMILIES["bert"])
    blocks = model.bert.encoder.layer
    blocks[1].attention.output.dense.weight = blocks[0].attention.output.dense.weight
    before = run(model, "bert")
    with pytest.raises(CannotCut, match="one tied weight"):
        cut(model, {"1": [0]})
    assert torch.equal(run(model, "bert"), before)


def test_rotary_angles_by_head_follow_their_heads():
    keep = KeepArgument("position_embeddings", 1, 4, [1, 3])
    angles = tuple(torch.randn(1, 4, 8) for _ in range(2))
    module = nn.Module()
    module.forward = lambda hidden_states, position_embeddings: None
    _, given = keep(module, (), {"hidden_states": None, "position_embeddings": angles})
    assert all(torch.equal(g, a[:, [1, 3]]) for g, a in zip(given["position_embeddings"], angles, strict=True))


@pytest.mark.parametrize("shape", [(5, 9), (1, 4), (7, 3)])
def test_buckets_by_distance_are_those_by_pair(shape):
    bucket = build(FAMILIES["t5"]).encoder.block[0].layer[0].SelfAttention._relative_position_bucket
    relative = torch.arange(shape[1])[None] - (torch.arange(shape[0])[:, None] + 2)
    options = {"bidirectional": False, "num_buckets": 32, "max_distance": 128}
    assert torch.equal(ByDistance(bucket)(relative, **options), bucket(relative, **options))


def test_norms_over_one_head_with_a_weight_for_each_are_cut():
    from transformers import ChameleonConfig, ChameleonModel

    pictures = {"embed_dim": 32, "latent_channels": 32, "base_channels": 32, "channel_multiplier": [1],
                "num_res_blocks": 1, "resolution": 32, "num_embeddings": 8}  # fmt: skip
    config = ChameleonConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                             intermediate_size=32, vocab_size=50, vq_config=pictures, vocabulary_map={"<image>": 9})  # fmt: skip
    model, ids = ChameleonModel(config).eval(), torch.tensor([[3, 4, 5]])
    for parameter in model.layers.parameters():
        nn.init.normal_(parameter)
    with gated(model, {"0": [1, 2]}):
        want = model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(cut(model, {"0": [1, 2]})(input_ids=ids).last_hidden_state, want)


def test_a_norm_across_contexts_is_refused():
    from transformers import BitNetConfig, BitNetModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 32, "vocab_size": 50}  # fmt: skip
    with pytest.raises(CannotCut, match="norm over the contexts of all heads"):
        cut(BitNetModel(BitNetConfig(**sizes)), {"0": [0, 1]})


def test_what_the_matrix_covers_is_what_counts_as_proven():
    """A class in PROVEN that no family reaches would be cut without a rehearsal."""
    reached = set()
    for family in FAMILIES.values():
        if not family.refused(transformers.__version__) and Version(family.since) <= Version(transformers.__version__):
            model = build(family)
            reached |= {type(model.get_submodule(site.module)).__name__ for site in find_sites(model).values()}
    assert transformers.__version__ in families.RELEASES
    assert reached <= families.PROVEN
    if transformers.__version__ == families.RELEASES[-1]:
        # Names that this release does not define belong to an older one, and are reached there.
        assert families.PROVEN & defined() <= reached


def defined():
    """The names of all classes that the models of this release define."""
    place = Path(transformers.__file__).parent / "models"
    texts = (path.read_text() for path in place.glob("*/modeling_*.py"))
    return {name for text in texts for name in re.findall(r"^class (\w+)\(", text, re.MULTILINE)}
