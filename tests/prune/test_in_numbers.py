"""A model that says NaN of some texts is not judged by the others, nor found to agree with itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from headwise.analysis.corpus import Text
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import TASKS
from tests.prune.tiny_tasks import BERT, corpus, make, tokenizer

SEVERAL = {"num_labels": 3, "id2label": {i: f"c{i}" for i in range(3)}, "label2id": {f"c{i}": i for i in range(3)}}
TAGS = SEVERAL | {"id2label": {0: "O", 1: "B-A", 2: "I-A"}, "label2id": {"O": 0, "B-A": 1, "I-A": 2}}
WORD = 7


def texts(kind):
    found = corpus(24, classes=3)
    change = {
        "text-regression": lambda text: float(text.label[1]),
        "token-classification": lambda text: " ".join(["O"] * len(text.text.split())),
        "agreement": lambda _: None,
    }.get(kind, lambda text: text.label)
    return replace(found, texts=[Text(text.text, label=change(text)) for text in found.texts])


CASES = [
    ("text-classification", BertForSequenceClassification, SEVERAL),
    ("multi-label", BertForSequenceClassification, SEVERAL | {"problem_type": "multi_label_classification"}),
    ("text-regression", BertForSequenceClassification, {"num_labels": 1}),
    ("token-classification", BertForTokenClassification, TAGS),
    ("embedding-probe", BertModel, {}),
    ("agreement", BertForSequenceClassification, SEVERAL),
    # Tied, the word would have no score in any text.
    ("agreement", BertForMaskedLM, {"tie_word_embeddings": False}),
    ("agreement", BertModel, {}),
]


@pytest.mark.parametrize(("kind", "cls", "more"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_model_that_says_no_numbers_of_a_text_is_told(kind, cls, more):
    model, judged = make(cls, BertConfig, **{**BERT, **more}), texts(kind)
    fitted = TASKS[kind]().fit(model, tokenizer(), judged)
    whole = fitted.judge(model, judged)
    assert len(whole.texts) == len(judged)
    word = f"w{WORD}"
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer().convert_tokens_to_ids(word)] = np.nan
    assert any(word in text.text.split() for text in judged.texts)
    with pytest.raises(
        BadInput, match=rf"no numbers \(NaN\) of \d+ of \d+ texts of a batch, the first '.*\b{word}\b.*'"
    ):
        fitted.judge(model, judged)


def spoiling(model, at):
    """The model, whose scores are none where `at` says, which is given the mask of real tokens and the scores' shape."""

    def spoil(_module, _args, inputs, output):
        real = inputs["attention_mask"].bool()
        output.logits = output.logits.masked_fill(at(real, output.logits.shape), np.nan)
        return output

    model.register_forward_hook(spoil, with_kwargs=True)
    return model


def first_token(real, _shape):
    return (torch.arange(real.shape[1]) == 0).unsqueeze(-1)


def fifth_score(_real, shape):
    return torch.arange(shape[-1]) == 5


@pytest.mark.parametrize("at", [first_token, fifth_score])
def test_a_token_or_score_that_is_none_is_told_of_what_is_said_of_tokens(at):
    """The likeliest of others and of NaN is NaN, with every model, so any two agreed."""
    judged = texts("agreement")
    model = spoiling(make(BertForMaskedLM, BertConfig, **BERT), at)
    with pytest.raises(BadInput, match=r"no numbers \(NaN\) of \d+ of \d+ texts"):
        TASKS["agreement"]().fit(model, tokenizer(), judged)


def test_padding_may_be_none():
    judged, padded = texts("agreement"), []

    def at(real, _shape):
        padded.append(int((~real).sum()))
        return ~real.unsqueeze(-1)

    model = spoiling(make(BertForMaskedLM, BertConfig, **BERT), at)
    assert TASKS["agreement"]().fit(model, tokenizer(), judged).judge(model, judged).value == 1.0
    assert any(padded)
