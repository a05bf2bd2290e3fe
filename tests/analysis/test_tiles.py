"""Tiles say what the eager kernel says, through every peculiarity of a family, and grow with neither."""

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5Model,
)  # fmt: skip

from headwise.analysis.capture import capture, tiles_agree
from headwise.analysis.capture.kernels import kernels
from headwise.analysis.capture.tiles import COPIES, KERNEL
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.portions import BYTES, Portions, map_bytes
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.similarity import MEASURES
from headwise.analysis.sites import find_sites
from headwise.analysis.statistics import Statistics

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 40}
GROUPED = SIZE | {"num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 4}
MIXED = ["sliding_attention", "full_attention"]
FAMILIES = {
    "bert": (BertForSequenceClassification, BertConfig(**SIZE)),
    "albert": (AlbertModel, AlbertConfig(**SIZE, embedding_size=8)),
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=40, n_positions=64,
                                         scale_attn_by_inverse_layer_idx=True)),
    "llama": (LlamaForCausalLM, LlamaConfig(**GROUPED)),
    "mistral": (MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=4)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=2.0)),
    "gpt-oss": (GptOssForCausalLM, GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1,
                                                sliding_window=4, layer_types=MIXED)),
    "t5": (T5Model, T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=4)),
}  # fmt: skip
ROWS = [list(np.random.default_rng(i).integers(4, 40, size=n)) for i, n in enumerate((15, 15, 9, 3))]


def model_of(family, dtype=torch.float32):
    kind, config = FAMILIES[family]
    torch.manual_seed(0)
    model = kind(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sink" in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.to(dtype).eval()


def stream(rows, width, left=False):
    ids, valid = torch.ones(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place], valid[i, place] = torch.tensor(row), True
    return Tokens(ids, valid, ids < 0, torch.full_like(ids, -1), torch.zeros(*ids.shape, 2, dtype=torch.long))


def batch_of(rows=ROWS, decoder=False, left=False):
    tokens = {"": stream(rows, max(map(len, rows)), left)}
    inputs = {"input_ids": tokens[""].ids, "attention_mask": tokens[""].valid.long()}
    if decoder:
        shorter = [row[:7] for row in rows]
        tokens["decoder"] = stream(shorter, max(map(len, shorter)))
        inputs |= {"decoder_input_ids": tokens["decoder"].ids,
                   "decoder_attention_mask": tokens["decoder"].valid.long()}  # fmt: skip
    return Batch(inputs, [Text(str(row)) for row in rows], tokens, tuple(range(len(rows))))


class Keep:
    needs = frozenset({"maps", "contexts"})

    def __init__(self):
        self.seen = {}

    def update(self, batch, seen):
        for name, one in seen.items():
            self.seen.setdefault(name, []).append(one)

    def result(self):
        return {}

    def joined(self, name, part, axis):
        return torch.cat([getattr(one, part) for one in self.seen[name]], dim=axis)


def memory_for(model, batch, rows):
    heads = sum(site.heads for site in find_sites(model).values())
    return rows * heads * batch.tokens[""].valid.numel() * BYTES * COPIES


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_are_the_eager_maps(family, rows):
    model, batch = model_of(family), batch_of(decoder=family == "t5")
    eager, tiled = Keep(), Keep()
    capture(model, [batch], [eager])
    went = capture(model, [batch], [tiled], door="tiles", memory=memory_for(model, batch, rows))
    assert (went.texts, went.batches, went.tiled) == (4, 1, 4)
    for name, (one,) in eager.seen.items():
        maps = tiled.joined(name, "maps", 2)
        assert (maps - one.maps)[one.queries[:, None].expand(maps.shape[:3])].abs().max() < 1e-5
        # Relative to the largest: T5 does not scale its scores, and processors round their sums differently.
        size = one.contexts[one.queries].abs().max().clamp(min=1.0)
        assert (tiled.joined(name, "contexts", 1) - one.contexts)[one.queries].abs().max() < 1e-5 * size
        assert torch.equal(tiled.joined(name, "allowed", 1), one.allowed)
        assert torch.equal(tiled.joined(name, "queries", 1), one.queries)
        assert [t.start for t in tiled.seen[name]] == list(range(0, maps.shape[2], tiled.seen[name][0].maps.shape[2]))
    if rows == 1:
        assert len(tiled.seen[name]) == maps.shape[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_reducers_read_both_doors(family):
    found = []
    model, batch = model_of(family), batch_of(decoder=family == "t5")
    for door in ("eager", "tiles"):
        sites = find_sites(model)
        measures = [MEASURES[name](sites) for name in ("pearson", "cosine", "hellinger")]
        reducers = [Statistics(sites), RelationMass(sites, ROLES), *measures]
        went = capture(model, [batch], reducers, door=door, memory=memory_for(model, batch, 4))
        found.append(({k: v for reducer in reducers for k, v in reducer.result().items()}, went.rows, went.missing))
    (eager, rows, missing), (tiled, tile_rows, tile_missing) = found
    assert rows == tile_rows == sum(map(len, ROWS))
    assert missing == pytest.approx(tile_missing, abs=1e-6)
    assert (family == "gpt-oss") == bool(missing)
    for name, array in eager.items():
        np.testing.assert_allclose(tiled[name], array, atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral"])
def test_padding_on_the_left_does_not_matter(family):
    model, found = model_of(family), []
    for left in (False, True):
        statistics = Statistics(find_sites(model))
        capture(model, [batch_of(left=left)], [statistics], door="tiles")
        found.append(statistics.result())
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=1e-5, err_msg=name)


def test_the_budget_chooses_the_door_batch_by_batch():
    model, keep = model_of("llama"), Keep()
    long, short = batch_of(ROWS[:1]), batch_of(ROWS[3:])
    memory = map_bytes(8, 9)
    for order in ([long, short], [short, long, short]):
        went = capture(model, order, [keep], memory=memory)
        assert (went.texts, went.tiled) == (len(order), 1)
    assert capture(model, [long], [keep]).tiled == 0
    assert capture(model, [long], [keep], memory=memory, door="eager").tiled == 0

    class Whole(Keep):
        whole = True

    assert capture(model, [long], [Whole()], memory=memory).tiled == 0
    with pytest.raises(BadInput, match="Whole reads whole maps"):
        capture(model, [long], [Whole()], door="tiles")
    with pytest.raises(Exception, match="door"):
        capture(model, [long], [keep], door="back")


def test_a_family_that_cannot_goes_eager():
    model = BloomModel(BloomConfig(hidden_size=16, n_layer=2, n_head=4, vocab_size=40)).eval()
    batch, keep = batch_of(ROWS[:1]), Keep()
    assert not tiles_agree(model, find_sites(model), batch)
    assert capture(model, [batch], [keep], memory=1).tiled == 0
    with pytest.raises(BadInput, match=r"kernel|tiles"):
        capture(model, [batch], [keep], door="tiles")


def test_tiles_that_lie_are_not_believed(monkeypatch):
    model, batch = model_of("llama"), batch_of(ROWS[:1])
    assert tiles_agree(model, find_sites(model), batch)
    from headwise.analysis.capture.tiles import Asked

    true = Asked.probabilities
    monkeypatch.setattr(Asked, "probabilities", lambda self, rows: true(self, rows).flip(1))
    assert not tiles_agree(model, find_sites(model), batch)


@pytest.mark.parametrize("raising", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "gpt-oss", "t5"])
def test_looking_in_tiles_changes_nothing(family, dtype, raising):
    model, batch = model_of(family, dtype), batch_of(decoder=family == "t5")

    class Raises(Keep):
        def update(self, batch, seen):
            assert set(kernels(model).values()) == {KERNEL}
            if raising:
                raise ZeroDivisionError

    before, hooks = kernels(model), [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    with torch.no_grad():
        logits = model(**batch.inputs)[0]
    if raising:
        with pytest.raises(ZeroDivisionError):
            capture(model, [batch], [Raises()], door="tiles")
    else:
        capture(model, [batch], [Raises()], door="tiles")
    assert kernels(model) == before
    assert hooks == [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    with torch.no_grad():
        assert torch.equal(model(**batch.inputs)[0], logits)


def test_a_tile_is_no_larger_than_the_budget():
    model, batch = model_of("llama"), batch_of()
    sizes = []

    class Sizes(Keep):
        needs = frozenset({"maps"})

        def update(self, batch, seen):
            sizes.append(sum(one.maps.numel() for one in seen.values()) * BYTES * COPIES)

    memory = memory_for(model, batch, 3)
    capture(model, [batch], [Sizes()], door="tiles", memory=memory)
    assert len(sizes) == 5
    assert max(sizes) <= memory
    capture(model, [batch], [Sizes()], door="tiles", memory=1)
    assert len(sizes) == 5 + 15


def test_portions_keep_every_text_and_its_rows():
    batch = batch_of(decoder=True, left=True)
    parts = list(Portions([batch], heads=8, memory=map_bytes(8, 9) * 2))
    assert [i for part in parts for i in part.index] == [0, 1, 2, 3]
    assert [part.inputs["input_ids"].shape[1] for part in parts] == [15, 15, 9]
    for part in parts:
        for k, i in enumerate(part.index):
            assert part.texts[k] is batch.texts[i]
            assert part.tokens[""].ids[k][part.tokens[""].valid[k]].tolist() == ROWS[i]
            assert part.inputs["decoder_input_ids"].shape == part.tokens["decoder"].ids.shape
