"""Agreement with the dense model, where there are no labels."""

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
)

from headwise.analysis.corpus import Corpus, Text, batches
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import Agreement, compare
from headwise.prune.tasks.agreement import token_divergence
from tests.prune.tiny_tasks import BERT, changed, corpus, make, tokenizer


def test_agreement_counts_equal_predictions_and_measures_their_divergence():
    model = make(BertForSequenceClassification, BertConfig, **BERT, num_labels=3)
    other = changed(model, scale=1.0)
    judged = corpus(40, source="other")
    fitted = Agreement().fit(model, tokenizer(), corpus())
    dense, cut = fitted.judge(model, judged), fitted.judge(other, judged)
    found = compare(dense, cut)
    same = [a == b for a, b in zip(dense.predictions, cut.predictions, strict=True)]
    assert found["cut"]["value"] == pytest.approx(np.mean(same))
    assert found["against_dense"]["agreement"] == pytest.approx(np.mean(same))
    assert found["meaning"].endswith("what the dense one says; no labels judge")
    kl = stats.entropy(dense.probabilities, cut.probabilities, axis=1).mean()
    assert found["against_dense"]["kl"] == pytest.approx(kl, rel=1e-5)
    assert token_divergence(model, other, fitted, judged) == pytest.approx(kl, rel=1e-4)
    assert found["test"] == "McNemar, exact"
    assert {row["dense"] for row in found["changed"]} <= {"LABEL_0", "LABEL_1", "LABEL_2"}, "what each model says"
    assert all(row["dense"] != row["cut"] for row in found["changed"][: same.count(False)])
    model.config.id2label = dict.fromkeys(range(3), "?")
    assert set(fitted.judge(model, judged).predictions) <= {"0", "1", "2"}, "names that tell no classes apart"


def test_divergence_of_tokens_leaves_padding_out():
    model = make(BertForMaskedLM, BertConfig, **BERT)
    other = changed(model)
    fitted = Agreement().fit(model, tokenizer(), corpus())
    found = token_divergence(model, other, fitted, corpus())
    parts = []
    for text in corpus().texts:
        with torch.inference_mode():
            given = tokenizer()(text.text, return_tensors="pt")
            first, second = (m(**given).logits[0].softmax(-1).double().numpy() for m in (model, other))
        parts.extend(stats.entropy(first, second, axis=1))
    assert found == pytest.approx(np.mean(parts), rel=1e-4)
    dense, cut = fitted.judge(model, corpus()), fitted.judge(other, corpus())
    assert len(dense.predictions[0]) == 6
    assert compare(dense, cut)["cut"]["value"] < 1


def test_losses_need_texts_that_the_dense_model_was_asked_about():
    model = make(BertForMaskedLM, BertConfig, **BERT)
    fitted = Agreement().fit(model, tokenizer(), corpus())
    batch = next(iter(batches(Corpus([Text("w29 w0")]), tokenizer(), model=model)))
    with pytest.raises(BadInput, match="was not asked about"):
        fitted.losses(model, batch)


@pytest.mark.parametrize("cls", [BertForSequenceClassification, BertForMaskedLM, BertModel])
def test_texts_asked_about_later_lose_as_if_asked_at_once(cls):
    dense = make(cls, BertConfig, **BERT)
    first, later = corpus(24), corpus(10, seed=1, source="other")
    found = batches(later, tokenizer(), model=dense, batch_size=4)
    fitted = Agreement().fit(dense, tokenizer(), first)
    with pytest.raises(BadInput, match="was not asked about"):
        fitted.losses(dense, next(iter(found)))
    more = fitted.asked(dense, found)
    both = Agreement().fit(dense, tokenizer(), Corpus((*first.texts, *later.texts), "both"))
    other = changed(dense, scale=1.0)
    with torch.no_grad():
        for batch in found:
            if cls is BertModel:
                rows = [both.told[text.id] for text in batch.texts]
                torch.testing.assert_close(torch.stack([more.told[text.id] for text in batch.texts]), torch.stack(rows))
                assert more.table is fitted.table
            else:
                torch.testing.assert_close(more.losses(other, batch), both.losses(other, batch))
        for batch in batches(first, tokenizer(), model=dense, batch_size=4):
            torch.testing.assert_close(more.losses(other, batch), fitted.losses(other, batch))
