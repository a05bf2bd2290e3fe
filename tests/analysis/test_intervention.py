"""Silencing what seems to play a role: a planted circuit is causal, a decoration is not."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.intervention import intervene, loss, others_like
from headwise.analysis.minimal_pairs import Pair, agreement_pairs, likelihoods, preference, read_pairs
from headwise.analysis.roles.random_sequences import repeated_sequences
from headwise.analysis.sites import find_sites, heads_of


class Letters:
    """A tokenizer of letters."""

    all_special_ids = ()

    def __len__(self):
        return 40

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 40 for letter in text]}


def model_of(seed=0):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=128)).eval()


def evidence_of(model, strong, role="induction"):
    heads = heads_of(find_sites(model))
    excess = np.array([0.9 - 0.1 * strong.index(head) if head in strong else 0.0 for head in heads])
    arrays = {f"roles/{role}/assigned": excess > 0, f"roles/{role}/excess": excess}
    return Evidence(heads, arrays)


def test_random_heads_are_of_the_same_sites_and_others():
    sites = find_sites(model_of())
    chosen = [("0", 1), ("0", 2), ("1", 0)]
    for seed in range(30):
        found = others_like(sites, chosen, np.random.default_rng(seed))
        assert len(set(found)) == 3
        assert not set(found) & set(chosen)
        assert sorted(site for site, _ in found) == ["0", "0", "1"]
    crowded = [("0", h) for h in range(3)]
    found = others_like(sites, crowded, np.random.default_rng(0))
    assert ("0", 3) in found
    assert [site for site, _ in found].count("1") == 2


@pytest.mark.parametrize("strongest", [True, False])
def test_the_heads_that_matter_most_are_causal_and_the_least_are_not(strongest):
    model = model_of(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4) if parameter.dim() > 1 else None
    sites, data = find_sites(model), repeated_sequences(40, seed=1, count=16)
    with torch.no_grad():
        base = loss(model, data, start=32)
    harm = {}
    for head in heads_of(sites):
        with gated(model, {head[0]: [head[1]]}):
            harm[head] = loss(model, data, start=32) - base
    order = sorted(harm, key=harm.get, reverse=strongest)
    found = intervene(model, Letters(), evidence_of(model, order[:1]), roles=["induction"], top=1, draws=40)[
        "induction"
    ]
    assert found["heads"] == [f"{order[0][0]}.{order[0][1]}"]
    assert found["effect"] == pytest.approx(harm[order[0]], abs=1e-6)
    assert found["base"] == pytest.approx(base, abs=1e-6)
    assert found["verdict"] == ("causal" if strongest and harm[order[0]] > 0 else "correlational")
    assert found["p"] == (1 / 41 if strongest else 1.0)
    assert found["random"]["low"] <= found["random"]["mean"] <= found["random"]["max"]


def test_what_cannot_be_tested_says_why():
    heads = [("0", 0)]
    model = model_of()
    found = intervene(model, Letters(), evidence_of(model, heads, "number"), roles=["number", "induction"])
    assert found["number"] == {"verdict": "not applicable", "reason": "no behaviour is known for it"}
    assert found["induction"] == {"verdict": "not applicable", "reason": "no head plays it"}
    bare = GPT2Model(model.config).eval()
    assert (
        "no language-modelling head"
        in intervene(bare, Letters(), evidence_of(bare, heads), roles=["induction"])["induction"]["reason"]
    )
    bert = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=40))
    assert (
        "no causal" in intervene(bert, Letters(), evidence_of(bert, heads), roles=["induction"])["induction"]["reason"]
    )


def test_intervening_changes_nothing():
    model = model_of()
    model.train()
    ids = torch.arange(20)[None]
    model.transformer.h[0].eval()
    state = [module.training for module in model.modules()]
    intervene(model, Letters(), evidence_of(model, [("0", 0)]), roles=["induction"], draws=2)
    assert state == [module.training for module in model.modules()]
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.eval()(ids).logits.isfinite().all()


def test_loss_is_cross_entropy():
    model, data = model_of(), repeated_sequences(40, length=8, count=4)
    ids = data[0].inputs["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    wanted = torch.nn.functional.cross_entropy(logits[:, 8:-1].flatten(0, 1), ids[:, 9:].flatten())
    assert loss(model, data, start=8) == pytest.approx(float(wanted), abs=1e-5)


def test_likelihoods_do_not_see_the_padding():
    model = model_of()
    alone = [float(likelihoods(model, Letters(), [text])[0]) for text in ("she ran", "he")]
    np.testing.assert_allclose(likelihoods(model, Letters(), ["she ran", "he"]), alone, atol=1e-5)
    pairs = [Pair("she ran", "he"), Pair("he", "she ran")]
    assert preference(model, Letters(), pairs) == pytest.approx(0, abs=1e-6)


def test_pairs_differ_in_the_reflexive_alone():
    pairs = agreement_pairs(100, seed=2)
    assert len(set(pairs)) == 100
    assert pairs == agreement_pairs(100, seed=2)
    for pair in pairs:
        words = [(a, b) for a, b in zip(pair.good.split(), pair.bad.split(), strict=True) if a != b]
        assert [{a.strip("."), b.strip(".")} for a, b in words] == [{"himself", "herself"}]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"sentence_good": "a"}', '{"sentence_good": 1, "sentence_bad": "b"}', "no"]
)
def test_broken_pairs_are_named(tmp_path, content):
    file = tmp_path / "pairs.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput, match=r"pairs\.jsonl"):
        read_pairs(file)
