"""Perplexity: weighted by tokens, long texts in sliding windows."""

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from headwise.analysis.corpus import Corpus, Text
from headwise.prune.tasks import CausalLM
from headwise.prune.tasks.windows import windows_of
from tests.prune.tiny_tasks import BERT, GPT, WORDS, corpus, make, tokenizer


def test_perplexity_is_weighted_by_tokens():
    model = make(LlamaForCausalLM, LlamaConfig, **BERT)
    texts = Corpus([Text("w1 w2 w3 w4 w5 w6"), Text("w7 w8"), Text("w9")])
    outcome = CausalLM().fit(model, tokenizer(None), texts, batch_size=2).judge(model, texts)
    nats, tokens = [], []
    for text in texts.texts[:2]:
        ids = tokenizer(None)(text.text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            nats.append(model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1))
        tokens.append(ids.shape[1] - 1)
    assert outcome.value == pytest.approx(np.exp(sum(nats) / sum(tokens)), rel=1e-5)
    np.testing.assert_allclose(outcome.per_example, np.array(nats) / tokens, rtol=1e-5)
    assert outcome.skipped == {"fewer than two tokens": 1}
    assert not outcome.higher_is_better


@pytest.mark.parametrize(("length", "width", "stride"), [(1, 4, 2), (4, 4, 2), (5, 4, 2), (50, 7, 3), (50, 7, 6)])
def test_windows_score_every_token_once_with_what_context_fits(length, width, stride):
    windows = windows_of(length, width, stride)
    scored = [t for w in windows for t in range(w.score, w.end)]
    assert scored == list(range(1, length))
    for w in windows:
        assert w.end - w.start <= width
        assert w.score - w.start >= (1 if w.start == 0 else width - stride)


def test_a_long_text_is_judged_by_a_sliding_window():
    model = make(GPT2LMHeadModel, GPT2Config, **GPT)
    text = " ".join(WORDS[i % 30] for i in range(60))
    fitted = CausalLM(window=500).fit(model, tokenizer(None), corpus())
    assert (fitted.window, fitted.stride) == (24, 12)
    outcome = fitted.judge(model, Corpus([Text(text)]))
    ids = tokenizer(None)(text, return_tensors="pt")["input_ids"]
    total, before = 0.0, 1
    for start in range(0, 60, 12):
        with torch.inference_mode():
            chances = model(input_ids=ids[:, start : start + 24]).logits.log_softmax(-1)[0]
        end = min(start + 24, 60)
        total -= sum(chances[t - 1 - start, ids[0, t]].item() for t in range(before, end))
        before = end
    assert outcome.weights.tolist() == [59]
    assert outcome.value == pytest.approx(np.exp(total / 59), rel=1e-5)
