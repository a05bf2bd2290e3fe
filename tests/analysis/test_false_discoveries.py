"""What has learned nothing plays no role: random weights over twenty seeds, uniform heads, exchangeable noise."""

import re

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from headwise.analysis.analyze import analyze
from headwise.analysis.annotations import Annotated, coreference_set
from headwise.analysis.corpus import embedded_corpus
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.inference import sign_flip_p
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import LEVEL, assign
from tests.word_tokenizers import of_words

SEEDS = 20
#: Of twenty seeds, how many may show a role where the false-discovery rate is one in twenty.
MOST = 1


@pytest.fixture(scope="module")
def corpus():
    return Corpus([Text(text.text[:160]) for text in embedded_corpus().sample(120, 0).texts], "paragraphs")


@pytest.fixture(scope="module")
def tokenizer(corpus):
    """Whole words of the texts, with what starts and ends one."""
    splitter = pre_tokenizers.BertPreTokenizer()
    texts = [text.text for text in corpus.texts] + [text.text for text in coreference_set()]
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    return of_words(["[UNK]", "[PAD]", *words], split=splitter, pad_token="[PAD]")


def gpt2(tokenizer, seed):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=4, n_positions=96,
                        bos_token_id=None, eos_token_id=None)  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def bert(tokenizer, seed):
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=32, max_position_embeddings=96)  # fmt: skip
    return BertModel(config).eval()


def seeds_with_roles(make, tokenizer, corpus, roles, count):
    found = []
    for seed in range(SEEDS):
        texts = Corpus(corpus.texts[seed % 5 :: 5][:count], "paragraphs")
        evidence = analyze(make(tokenizer, seed), tokenizer, texts, measures=[], roles=roles, seed=seed)
        tested = sum(np.isfinite(evidence[f"roles/{role}/q"]).sum() for role in roles)
        assert tested > 8 * 12
        if any(evidence.roles()):
            found.append((seed, evidence.roles()))
    return found


def test_random_weights_play_no_role_over_twenty_seeds(tokenizer, corpus):
    roles = [role for role in ROLES if role != "coreference"]
    found = seeds_with_roles(gpt2, tokenizer, corpus, roles, 8)
    assert len(found) <= MOST, found


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, bert])
def test_random_weights_play_no_role_on_every_text(make, tokenizer, corpus):
    found = seeds_with_roles(make, tokenizer, corpus, list(ROLES), 120)
    assert len(found) <= MOST, found


def chance_links(corpus, seed=0):
    """Two candidates a text, one of them the right one by lot."""
    draw, found = np.random.default_rng(seed), []
    for text in corpus.texts[:60]:
        words = [(at.start(), at.end()) for at in re.finditer(r"[A-Za-z]+", text.text)][:12]
        if len(words) >= 8:
            a, b = draw.choice(len(words) - 1, size=2, replace=False)
            links = ((words[-1], words[draw.choice([a, b])]),)
            found.append(Annotated(text.text, links, "by lot", candidates=(words[a], words[b])))
    assert len(found) > 30
    return found


def test_a_uniform_model_plays_no_role(tokenizer, corpus):
    model = gpt2(tokenizer, 0)
    for block in model.transformer.h:
        # Queries of zeros: every key has the same weight.
        block.attn.c_attn.weight.data[:, :16] = 0
        block.attn.c_attn.bias.data[:16] = 0
    annotated = [*coreference_set("dev")[::16], *chance_links(corpus)]
    evidence = analyze(model, tokenizer, Corpus(corpus.texts[:24], "paragraphs"), measures=[], annotated=annotated)
    assert evidence.roles() == [[]] * 8
    assert (evidence["roles/primary"] == -1).all()
    assert (evidence["roles/by lot/n"] > 30).all()
    for name, array in evidence.arrays.items():
        if name.endswith("/excess"):
            assert np.nanmax(array, initial=0.0) < 1e-5, name


def test_exchangeable_noise_is_found_in_one_of_twenty_seeds_at_most():
    """Without any least effect, the stated rate is kept by the p-values alone: every discovery here is false."""
    found = 0
    for seed in range(2 * SEEDS):
        draw = np.random.default_rng(seed)
        noise = draw.standard_t(3, size=(4, 40, 12)) * draw.exponential(size=(4, 40, 1))
        tests = {str(i): {"p": sign_flip_p(one), "excess": one.mean(0)} for i, one in enumerate(noise)}
        arrays = assign(tests, {}, effect=0.0)
        found += any(arrays[f"roles/{role}/assigned"].any() for role in tests)
    # Twice the standard error of a rate of one in twenty over forty seeds.
    assert found / (2 * SEEDS) <= LEVEL + 2 * np.sqrt(LEVEL * (1 - LEVEL) / (2 * SEEDS))
