"""Further nulls beside the analytic chance: tokens dealt anew, and a copy that has learned nothing."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from headwise.analysis.analyze import analyze
from headwise.analysis.annotations import coreference_set
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import Measured, assign, inferred
from headwise.analysis.roles.dealing import DealtMass, dealt, scaled
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.random_copy import random_copy
from headwise.analysis.roles.random_sequences import induction, repeated_sequences
from headwise.analysis.sites import Site, find_sites

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)

LENGTH, MARK = 10, 7


class Tokenizer:
    def decode(self, ids):
        return "," if ids[0] == MARK else "word"


def tokens_of(texts):
    """[CLS] words [SEP], a quarter of the words commas."""
    ids = torch.stack([torch.randint(20, 30, (LENGTH,), generator=torch.Generator().manual_seed(i)) for i in texts])
    ids[:, 3], ids[:, 6] = MARK, MARK
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 0] = special[:, -1] = True
    words = torch.zeros(*ids.shape, 2, dtype=torch.long)
    return Tokens(ids, ids > 0, special, ids, words, tokenizer=Tokenizer())


def site(heads):
    return Site("0", "a", "a.o", heads, heads, 1, kept=tuple(range(heads)))


def batch_and_seen(maps_of, texts=range(40), heads=2, rows=slice(None)):
    tokens = tokens_of(texts)
    batch = Batch({}, [Text(f"text {i}") for i in texts], {"": tokens})
    maps = maps_of(tokens)
    allowed = torch.ones(len(tokens.ids), LENGTH, LENGTH, dtype=torch.bool)
    start = rows.start or 0
    return batch, {"0": Seen(site(heads), maps[:, :, rows], None, tokens.valid[:, rows], allowed[:, rows], start=start)}


def shun_specials(tokens):
    """Head 0 looks at every word alike and at no special token; head 1 looks at commas."""
    plain = (~tokens.special).float()[:, None].expand(-1, LENGTH, -1)
    marks = (tokens.ids == MARK).float()[:, None].expand(-1, LENGTH, -1)
    return torch.stack([plain / plain.sum(-1, keepdim=True), marks / marks.sum(-1, keepdim=True)], dim=1)


def test_dealing_keeps_places_of_specials_and_follows_from_the_text_alone():
    tokens = tokens_of(range(6))
    texts = [Text(f"text {i}") for i in range(6)]
    found = dealt(tokens, texts, "0:1").ids
    assert torch.equal(found.sort(-1).values, tokens.ids.sort(-1).values)
    assert torch.equal(found[:, [0, -1]], tokens.ids[:, [0, -1]])
    assert not torch.equal(found, tokens.ids)
    assert not torch.equal(found, dealt(tokens, texts, "0:2").ids)
    # The last two texts alone, with padding.
    wide = Tokens(
        *(nn.functional.pad(part[4:], (0, 3)) for part in (tokens.ids, tokens.valid, tokens.special, tokens.words)),
        torch.zeros(2, LENGTH + 3, 2, dtype=torch.long),
    )
    assert torch.equal(dealt(wide, texts[4:], "0:1").ids[:, :LENGTH], found[4:])


@pytest.mark.parametrize("tile", [LENGTH, 4])
def test_the_permutation_null_is_the_mean_over_the_permutations(tile):
    roles = {"comma": ROLES["comma"], "previous": ROLES["previous"], "repeated-token": ROLES["repeated-token"]}
    logits = torch.randn(3, 2, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0))
    null, own = DealtMass({"0": site(2)}, roles, deals=5, seed=9), RelationMass({"0": site(2)}, roles)
    for start in range(0, LENGTH, tile):
        batch, seen = batch_and_seen(lambda _: logits.softmax(-1), range(3), rows=slice(start, start + tile))
        null.update(batch, seen)
        own.update(batch, seen)
    assert set(null.roles) == {"comma", "repeated-token"}
    batch, seen = batch_and_seen(lambda _: logits.softmax(-1), range(3))
    for role in null.roles:
        excess, rows = np.zeros(2), 0
        for deal in range(5):
            ids = dealt(batch.tokens[""], batch.texts, f"9:{deal}").ids
            for text in range(3):
                for query in range(LENGTH):
                    chosen = [k for k in range(1, LENGTH - 1) if (
                        int(ids[text, k]) == MARK if role == "comma"
                        else k != query and int(ids[text, k]) == int(ids[text, query])
                    )]  # fmt: skip
                    if chosen:
                        mass = seen["0"].map[text, :, query, chosen].sum(-1).numpy()
                        excess += (mass - len(chosen) / LENGTH) / 5
                        rows += 1 / 5
        measured = null.measured(role)
        np.testing.assert_allclose(measured.excess.sum(0), excess, atol=1e-5)
        np.testing.assert_allclose(measured.rows.sum(0), rows)
        ours = own.measured(role).rows
        mean = measured.excess / np.where(measured.rows > 0, measured.rows, 1)
        np.testing.assert_allclose(scaled(measured, ours), mean * ours)


def test_a_head_that_only_shuns_specials_is_at_the_permutation_null():
    sites, roles = {"0": site(2)}, {"comma": ROLES["comma"]}
    own, null = RelationMass(sites, roles), DealtMass(sites, roles)
    batch, seen = batch_and_seen(shun_specials)
    own.update(batch, seen)
    null.update(batch, seen)
    sums = own.measured("comma")
    # Two of ten keys are commas, and two of the eight that it looks at.
    alone = inferred(sums)
    np.testing.assert_allclose(alone["excess"], [0.25 - 0.2, 1 - 0.2], atol=1e-6)
    both = inferred(
        Measured(sums.score, sums.chance, sums.excess, sums.rows, null=scaled(null.measured("comma"), sums.rows))
    )
    np.testing.assert_allclose(both["null"], [0.25, 0.25], atol=0.06)
    assert both["null"][0] == pytest.approx(0.25)
    np.testing.assert_allclose(both["chance"], 0.2, atol=1e-6)
    np.testing.assert_allclose(both["excess"], both["score"] - np.maximum(both["null"], both["chance"]), atol=1e-9)
    assert (both["low"] <= both["excess"]).all()
    assert (both["excess"] <= both["high"]).all()
    found = assign({"comma": both}, ROLES, effect=0.04)
    assert found["roles/comma/assigned"].tolist() == [False, True]
    assert assign({"comma": alone}, ROLES, effect=0.04)["roles/comma/assigned"].tolist() == [True, True]
    assert found["roles/comma/null"] is both["null"]


def test_a_null_below_chance_changes_nothing_but_the_smaller_effect_counts():
    rows = np.ones((30, 2))
    noise = 0.01 * np.random.default_rng(0).normal(size=(30, 1))
    sums = Measured(0.6 * rows, 0.2 * rows, 0.4 * rows + noise, rows, null=np.array([[-0.1, 0.3]]) * rows)
    found = inferred(sums)
    np.testing.assert_allclose(found["null"], [0.1, 0.5])
    np.testing.assert_allclose(found["excess"], np.array([0.4, 0.1]) + noise.mean())


def test_the_permutation_null_leaves_an_induction_head_its_role():
    """Dealing the tokens of a sequence said twice anew breaks what stands after what, and nothing else."""
    assert ROLES["induction"].relation is induction
    sites = {"0": site(1)}
    own = RelationMass(sites, {"induction": ROLES["induction"]})
    null = DealtMass(sites, {"induction": ROLES["induction"]})
    for batch in repeated_sequences(500, length=8, count=32):
        maps = torch.ones(len(batch.texts), 1, 16, 16).tril()
        maps = maps / maps.sum(-1, keepdim=True)
        for q in range(8, 16):
            maps[:, 0, q] *= 0.2
            maps[:, 0, q, q - 7] += 0.8
        allowed = torch.ones(len(batch.texts), 16, 16, dtype=torch.bool).tril()
        seen = {"0": Seen(sites["0"], maps, None, allowed[:, :, 0], allowed)}
        own.update(batch, seen)
        null.update(batch, seen)
    sums = own.measured("induction")
    found = inferred(
        Measured(sums.score, sums.chance, sums.excess, sums.rows, null=scaled(null.measured("induction"), sums.rows))
    )
    # A head that stands seven behind gets a little of any order, and much less than its score.
    assert found["score"][0] > 0.8
    assert found["null"][0] < 0.4
    assert found["excess"][0] > 0.4


def test_a_random_copy_has_new_weights_of_the_same_kind_and_touches_nothing():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
        parameter._is_hf_initialized = True
    before, state = {name: p.clone() for name, p in model.named_parameters()}, torch.random.get_rng_state()
    copy, again, other = random_copy(model, 1), random_copy(model, 1), random_copy(model, 2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    for name, parameter in copy.named_parameters():
        assert torch.equal(parameter, dict(again.named_parameters())[name])
        if parameter.ndim > 1:
            assert not torch.equal(parameter, before[name])
            assert not torch.equal(parameter, dict(other.named_parameters())[name])
            assert float(parameter.detach().std()) == pytest.approx(config.initializer_range, rel=0.2)
    assert copy.lm_head.weight is copy.model.embed_tokens.weight
    assert find_sites(copy) == find_sites(model)
    ids = torch.arange(12)[None]
    # The same places: what turns positions into angles is no weight.
    assert torch.equal(copy.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert copy(ids).logits.isfinite().all()
    assert not copy.training


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.randn(3, 3))


def test_a_random_copy_that_cannot_be_made_is_refused():
    with pytest.raises(BadInput, match="nothing initialises own"):
        random_copy(Stubborn())
    with torch.device("meta"):
        away = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="weight is not in memory"):
        random_copy(away)
    packed = nn.Linear(2, 2)
    packed.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(BadInput, match=r"weight is quantised \(int8\)"):
        random_copy(packed)


@pytest.fixture(scope="module")
def found():
    model, tokenizer, corpus = planted.planted_model(), planted.planted_tokenizer(), planted.planted_corpus(60)
    roles = [role for role in ROLES if role != "coreference"]
    return {
        null: analyze(model, tokenizer, corpus, measures=[], roles=roles, null=null)
        for null in ("analytic", "permutation", "random-copy")
    }


def test_planted_heads_keep_their_roles_under_every_null(found):
    for null, evidence in found.items():
        assert evidence.roles()[:2] == [["previous"], ["punctuation"]], null
        assert evidence.facts["settings"]["null"] == null


def test_nulls_apply_where_they_are_said_to(found):
    shown = {
        null: {name.split("/")[1] for name in evidence.arrays if name.endswith("/null")}
        for null, evidence in found.items()
    }
    assert shown["analytic"] == set()
    assert shown["permutation"] == {
        name for name, role in ROLES.items() if role.lexical and name not in ("induction", "duplicate-token")
    }
    assert {"previous", "punctuation", "broad", "fixed-offset", "rare-token"} <= shown["random-copy"]
    # Every score, chance and count is what it is without a null; roles can only be lost.
    for null in ("permutation", "random-copy"):
        for name, array in found["analytic"].arrays.items():
            if name.endswith(("/score", "/chance", "/n")):
                np.testing.assert_array_equal(array, found[null][name], err_msg=name)
            if name.endswith("/assigned"):
                assert (found[null][name] <= array).all()


def test_a_copy_that_knows_nothing_is_at_chance(found):
    evidence = found["random-copy"]
    for role in ("previous", "punctuation", "self"):
        np.testing.assert_allclose(evidence[f"roles/{role}/null"], evidence[f"roles/{role}/chance"], atol=0.02)
    assert (evidence["roles/broad/null"] < 0.05).all()


def test_links_and_coreference_have_the_copy_as_a_rule_to_beat():
    """A model with random weights is no better than another one with random weights."""
    tokenizer = planted.planted_tokenizer()
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=4, n_positions=96,
                                       bos_token_id=None, eos_token_id=None)).eval()  # fmt: skip
    some = coreference_set("dev")[::20]
    other = [type(one)(one.text, one.links, "stands for", candidates=one.candidates, mentions=one.mentions)
             for one in coreference_set("dev")[::10]]  # fmt: skip
    texts = planted.planted_corpus(12)
    evidence = analyze(
        model, tokenizer, texts, measures=[], roles=["coreference"], annotated=[*some, *other], null="random-copy"
    )
    plain = analyze(model, tokenizer, texts, measures=[], roles=["coreference"], annotated=[*some, *other])
    again = analyze(
        random_copy(model, 0), tokenizer, texts, measures=[], roles=["coreference"], annotated=[*some, *other]
    )
    for kind in ("coreference", "stands for"):
        null, score = evidence[f"roles/{kind}/null"], evidence[f"roles/{kind}/score"]
        np.testing.assert_allclose(null, again[f"roles/{kind}/score"], atol=1e-6)
        np.testing.assert_allclose(score, plain[f"roles/{kind}/score"])
        rules = np.maximum(plain[f"roles/{kind}/chance"], null)
        np.testing.assert_allclose(evidence[f"roles/{kind}/chance"], rules, atol=1e-9)
        np.testing.assert_allclose(evidence[f"roles/{kind}/excess"], score - rules, atol=1e-9)
        assert (evidence[f"roles/{kind}/p"] >= plain[f"roles/{kind}/p"]).all()


def test_an_unknown_null_is_refused():
    with pytest.raises(BadInput, match="null: got 'luck', expected some of analytic, permutation, random-copy"):
        analyze(planted.planted_model(), planted.planted_tokenizer(), planted.planted_corpus(2), null="luck")
