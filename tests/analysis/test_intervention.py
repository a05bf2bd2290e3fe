"""Silencing what seems to play a role: a planted circuit is causal, a decoration is not."""

import json

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model

from headwise.analysis.corpus.minimal_pairs import (
    Pair,
    agreement_pairs,
    likelihoods,
    preference,
    pseudo_likelihoods,
    read_pairs,
)
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.intervention import PROBES, intervene, others_like
from headwise.analysis.probes import SEQUENCES, OwnLoss, gap_loss, loss, probe_of
from headwise.analysis.roles.random_sequences import repeated_sequences
from headwise.analysis.sites import find_sites, heads_of


class Letters:
    """A tokenizer of letters."""

    all_special_ids = ()

    def __len__(self):
        return 40

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 40 for letter in text]}


def model_of(seed=0, heads=4, layers=2):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=40, n_embd=2 * heads, n_layer=layers, n_head=heads, n_positions=128)
    return GPT2LMHeadModel(config).eval()


def bert_of(cls=BertForMaskedLM):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=24, intermediate_size=32, vocab_size=41
    )
    return cls(config).eval()


class Gaps(Letters):
    """The same with a token that stands in a gap, and one that starts a text."""

    mask_token_id, all_special_ids = 40, (0,)

    def __call__(self, text):
        return {"input_ids": [0, *(ord(letter) % 39 + 1 for letter in text)]}


def evidence_of(model, strong, role="induction"):
    heads = heads_of(find_sites(model))
    excess = np.array([0.9 - 0.1 * strong.index(head) if head in strong else 0.0 for head in heads])
    arrays = {f"roles/{role}/assigned": excess > 0, f"roles/{role}/excess": excess}
    return Evidence(heads, arrays)


def test_random_heads_are_of_the_same_sites_and_others():
    sites = find_sites(model_of())
    chosen = [("0", 1), ("0", 2), ("1", 0)]
    for found in others_like(sites, chosen, 30, np.random.default_rng(0)):
        assert len(set(found)) == 3
        assert not set(found) & set(chosen)
        assert sorted(site for site, _ in found) == ["0", "0", "1"]
    crowded = [("0", h) for h in range(3)]
    for found in others_like(sites, crowded, 30, np.random.default_rng(0)):
        assert ("0", 3) in found
        assert [site for site, _ in found].count("1") == 2


def test_sets_of_random_heads_all_differ_and_too_few_are_no_test():
    sites = find_sites(model_of())
    # Of site 0 the one other pair, of site 1 one of three: three sets in all, however often one draws.
    chosen = [("0", 0), ("0", 1), ("1", 3)]
    sets = others_like(sites, chosen, 50, np.random.default_rng(1))
    assert sorted(sorted(heads) for heads in sets) == [[("0", 2), ("0", 3), ("1", k)] for k in range(3)]
    model = model_of()
    found = intervene(model, Letters(), evidence_of(model, chosen), roles=["induction"])["induction"]
    assert (found["verdict"], found["draws"], found["p"]) == ("not applicable", None, None)
    assert found["reason"] == "only 3 sets of as many other heads to compare with"


@pytest.fixture(scope="module")
def harmed():
    """A model, its loss on sequences said twice, and what each of its heads is worth there."""
    model = model_of(3, heads=24, layers=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4) if parameter.dim() > 1 else None
    data = repeated_sequences(40, seed=1, count=SEQUENCES)
    base, harm = loss(model, data, start=32), {}
    for head in heads_of(find_sites(model)):
        with gated(model, {head[0]: [head[1]]}):
            harm[head] = loss(model, data, start=32) - base
    return model, base, harm


@pytest.mark.parametrize("strongest", [True, False])
def test_the_heads_that_matter_most_are_causal_and_the_least_are_not(strongest, harmed):
    model, base, harm = harmed
    order = sorted(harm, key=harm.get, reverse=strongest)
    found = intervene(model, Letters(), evidence_of(model, order[:1]), roles=["induction"], top=1)["induction"]
    label = f"{order[0][0]}.{order[0][1]}"
    assert found["heads"] == [label]
    assert found["effect"] == pytest.approx(harm[order[0]], abs=1e-6)
    assert found["base"] == pytest.approx(base, abs=1e-6)
    assert found["silenced"] == pytest.approx(base + harm[order[0]], abs=1e-6)
    # The site has 23 other heads, and all of them are drawn.
    assert found["draws"] == 23
    others = [value for head, value in harm.items() if head[0] == order[0][0] and head != order[0]]
    assert found["as_harmful"] == (0 if strongest else 23)
    assert found["p"] == (1 / 24 if strongest else 1.0)
    assert found["random"]["mean"] == pytest.approx(np.mean(others), abs=1e-6)
    assert found["random"]["max"] == pytest.approx(max(others), abs=1e-6)
    assert found["verdict"] == ("causal" if strongest else "correlational")
    start = f"Causal: without {label} the loss on the second half" if strongest else "Only correlational: without"
    assert found["says"].startswith(start)
    assert ("none of 23" in found["says"]) is strongest


def test_what_cannot_be_tested_says_why():
    heads = [("0", 0)]
    model = model_of()
    found = intervene(model, Letters(), evidence_of(model, heads, "number"), roles=["number", "induction"])
    assert [one["verdict"] for one in found.values()] == ["not applicable"] * 2
    assert found["number"]["says"] == "Not applicable: no behaviour is known for it."
    assert found["induction"]["reason"] == "no head plays it"
    for bare, why in (
        (GPT2Model(model.config).eval(), "the model has no language-modelling head"),
        (bert_of(BertModel), "the model has no language-modelling head"),
    ):
        assert intervene(bare, Letters(), evidence_of(bare, heads), roles=["induction"])["induction"]["reason"] == why
    filler = bert_of()
    found = intervene(filler, Letters(), evidence_of(filler, heads), roles=["induction"])
    assert found["induction"]["reason"] == "the model neither predicts the next token nor fills gaps"


def test_every_answer_is_plain_data_with_the_same_keys():
    model = model_of(heads=24, layers=1)
    found = intervene(
        model, Letters(), evidence_of(model, [("0", 0)]), roles=["induction", "coreference", "number"], draws=19
    )
    assert [one["role"] for one in found.values()] == list(found)
    assert len({frozenset(one) for one in found.values()}) == 1
    assert json.loads(json.dumps(found)) == found


def test_a_model_without_a_language_head_is_held_to_its_own_task():
    model = bert_of(BertModel)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        dense = model(ids).last_hidden_state

    def moved(model):
        with torch.no_grad():
            return float((model(ids).last_hidden_state - dense).square().mean())

    own = OwnLoss("staying the same", 1, moved)
    found = intervene(model, Letters(), evidence_of(model, [("0", 3)], "punctuation"), roles=["punctuation"], own=own)
    one = found["punctuation"]
    assert (one["probe"], one["count"], one["base"]) == ("task", 1, 0.0)
    assert one["measured"] == "the loss of its own task (staying the same)"
    with gated(model, {"0": [3]}):
        assert one["effect"] == pytest.approx(moved(model))
    assert one["effect"] > 0
    assert one["draws"] == 23
    # One with such a head is asked about words, whatever its own task is.
    filler = bert_of()
    texts = repeated_sequences(40, count=4)
    found = intervene(
        filler, Gaps(), evidence_of(filler, [("0", 3)], "punctuation"), texts, roles=["punctuation"], own=own, draws=19
    )
    assert (found["punctuation"]["probe"], found["punctuation"]["count"]) == ("language", 4)


def test_a_model_that_fills_gaps_is_probed_by_gaps():
    model, tokenizer = bert_of(), Gaps()
    ids = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 8]])
    wanted = torch.zeros(2)
    for row, place in ((r, k) for r in range(2) for k in range(1, 4)):
        masked = ids[row : row + 1].clone()
        masked[0, place] = 40
        with torch.no_grad():
            wanted[row] += model(masked).logits[0, place].log_softmax(-1)[ids[row, place]]

    class Rows(Gaps):
        def __call__(self, text):
            return {"input_ids": ids[int(text)].tolist()}

    found = pseudo_likelihoods(model, Rows(), ["0", "1"], 40, together=4)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    lead = preference(model, Rows(), [Pair("0", "1")], mask=40)
    assert lead == pytest.approx(float(wanted[0] - wanted[1]), abs=1e-5)

    probe = probe_of("repetition", "gaps", model, tokenizer)
    again = repeated_sequences(40, reserved=(0,), seed=1, count=SEQUENCES)
    total, count = 0.0, 0
    for batch in again:
        rows = batch.tokens[""].ids
        # From place 32 on the places are numbered from 1, and rows start one further on each.
        gaps = [[k >= 32 and (k - 31 + row) % 4 == 0 for k in range(64)] for row in range(len(rows))]
        gaps = torch.tensor(gaps)
        with torch.no_grad():
            logits = model(rows.masked_fill(gaps, 40)).logits
        total += float(torch.nn.functional.cross_entropy(logits[gaps], rows[gaps], reduction="sum"))
        count += int(gaps.sum())
    assert probe.measure() == pytest.approx(total / count, abs=1e-5)
    assert probe.measured == "the loss on masked tokens of random sequences said twice"
    assert gap_loss(model, again, 40, lambda tokens: tokens.ids < 0) == 0


@pytest.mark.parametrize("role", ["coreference", "separator"])
def test_every_probe_runs_on_a_model_that_fills_gaps(role):
    model = bert_of()
    texts, pairs = repeated_sequences(40, count=2), [Pair("she ran", "he ran")]
    found = intervene(model, Gaps(), evidence_of(model, [("0", 0)], role), texts, roles=[role], pairs=pairs, draws=19)
    found = found[role]
    assert (found["probe"], found["draws"]) == (PROBES[role], 19)
    assert np.isfinite([found["base"], found["effect"], found["random"]["max"]]).all()


def test_pairs_are_drawn_from_the_whole_of_what_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "headwise.analysis.probes.preference", lambda model, tokenizer, pairs, mask=None: asked.append(pairs) or 0.0
    )
    given = [Pair(f"good {i}", f"bad {i}") for i in range(1000)]
    for seed in (0, 0, 1):
        probe = probe_of("agreement", "next", model_of(), Letters(), pairs=given, seed=seed)
        probe.measure()
        assert probe.count == 64
    assert asked[0] == asked[1] != asked[2]
    assert len(set(asked[0])) == 64
    # A file has its phenomena one after the other: the first 64 would be of one alone.
    assert 200 < sum(given.index(pair) >= 500 for pair in asked[0]) / 64 * 1000 < 800


def test_intervening_changes_nothing():
    model = model_of(heads=24)
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
