"""Tiny models and texts of the tests of tasks, and noise that stands in for a cut."""

import numpy as np
import torch

from headwise.analysis.corpus import Corpus, Text
from tests.word_tokenizers import of_words

WORDS = [f"w{i}" for i in range(30)]


def tokenizer(pad="[PAD]", **options):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    return of_words(words, framed=bool(pad), pad_token=pad, eos_token="[SEP]", **options)


BERT = {
    "vocab_size": 34, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 24, "initializer_range": 0.4,
}  # fmt: skip
GPT = {"vocab_size": 34, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}


def make(kind, config, seed=0, **options):
    torch.manual_seed(seed)
    return kind(config(**options)).eval()


def corpus(n=24, classes=3, seed=0, source="made", labels=None):
    draw = np.random.default_rng(seed)
    names = labels or [f"c{i}" for i in range(classes)]
    texts = []
    for i in range(n):
        label = i % classes
        # Words of a class come from its own ten, so that a probe has something to find.
        words = draw.integers(10 * label, 10 * label + 10, size=4 + i % 7)
        texts.append(Text(" ".join(WORDS[w % 30] for w in words), label=names[label]))
    return Corpus(texts, source)


def changed(model, seed=7, scale=0.3):
    """The model with noise on its weights: a stand-in for a cut one."""
    other = type(model)(model.config).eval()
    other.load_state_dict(model.state_dict())
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * scale * parameter.std(unbiased=False))
    return other
