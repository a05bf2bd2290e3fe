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
    ("agreement", BertForMaskedLM, {}),
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
