"""Classes of texts: the metrics of scikit-learn, labels by name, what is no classification."""

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

from headwise.analysis.corpus import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.prune import Recipe, run
from headwise.prune.opening import open_checkpoint
from headwise.prune.tasks import CausalLM, EmbeddingProbe, compare
from headwise.prune.tasks.labels import label_numbers
from headwise.prune.tasks.metrics import METRICS
from headwise.prune.tasks.text_classification import TextClassification
from tests.prune.tiny_tasks import BERT, GPT, corpus, make, tokenizer


def test_classification_agrees_with_scikit_learn():
    model = make(BertForSequenceClassification, BertConfig, **BERT, id2label={0: "c0", 1: "c1", 2: "c2"})
    texts = corpus(30)
    with torch.inference_mode():
        said = [model(**tokenizer()(t.text, return_tensors="pt")).logits.argmax().item() for t in texts.texts]
    right = [int(t.label[1]) for t in texts.texts]
    oracles = {
        "accuracy": sk.accuracy_score(right, said),
        "balanced-accuracy": sk.balanced_accuracy_score(right, said),
        "macro-f1": sk.f1_score(right, said, average="macro", zero_division=0),
        "matthews": sk.matthews_corrcoef(right, said),
    }
    assert set(oracles) == set(METRICS)
    for metric, expected in oracles.items():
        outcome = TextClassification(metric=metric).fit(model, tokenizer(), texts).judge(model, texts)
        assert outcome.value == pytest.approx(expected)
        assert outcome.metric == metric
    assert outcome.predictions == [f"c{i}" for i in said]
    found = compare(outcome, outcome, resamples=50)
    assert found["dense"]["low"] <= found["dense"]["value"] <= found["dense"]["high"]
    for i in range(3):
        here = [s == r for s, r in zip(said, right, strict=True) if r == i]
        assert found["per_class"][f"c{i}"] == {"n": 10, "dense": np.mean(here), "cut": np.mean(here)}


def test_decoders_without_a_pad_token_classify_as_they_do_alone():
    model = make(GPT2ForSequenceClassification, GPT2Config, **GPT, num_labels=3)
    assert model.config.pad_token_id is None
    texts = corpus(12, labels=[0, 1, 2])
    fitted = TextClassification().fit(model, tokenizer(pad=None), texts, batch_size=6)
    outcome = fitted.judge(model, texts)
    assert model.config.pad_token_id is None
    for i, text in enumerate(texts.texts):
        with torch.inference_mode():
            alone = model(**tokenizer(pad=None)(text.text, return_tensors="pt")).logits.softmax(-1)[0]
        np.testing.assert_allclose(outcome.probabilities[i], alone, atol=1e-5)


def test_a_run_tells_a_decoder_what_fills_up(tmp_path):
    model = make(GPT2ForSequenceClassification, GPT2Config, **GPT, num_labels=3)
    rows = [f"{text.text},c{i % 3}" for i, text in enumerate(corpus(24).texts)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    where = {"source": str(tmp_path / "texts.csv"), "text": "text", "label": "label"}
    told = {
        "schema": 1, "score": {"kind": "reconstruction"}, "remove": {"heads": 1}, "data": {"calibration": where},
        "task": {"kind": "text-classification", "labels": {f"c{i}": i for i in range(3)}},
        "speed": {"batches": [2], "lengths": [4], "rounds": 3, "seconds": 1},
    }  # fmt: skip
    done = run(Recipe.from_text(json.dumps(told)), model, tokenizer=tokenizer(pad=None), output_dir=tmp_path / "run")
    assert model.config.pad_token_id is None
    assert done.model.config.pad_token_id == tokenizer(pad=None).eos_token_id

    model.save_pretrained(tmp_path / "m")
    tokenizer(pad=None).save_pretrained(tmp_path / "m")
    assert open_checkpoint(str(tmp_path / "m")).model.config.pad_token_id == tokenizer(pad=None).eos_token_id


def test_an_encoder_decoder_classifies_pairs():
    small = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 3, "bos_token_id": 2}
    model = make(BartForSequenceClassification, BartConfig, vocab_size=34, **small, **heads, **ids, num_labels=2)
    texts = Corpus([Text("w1 w2", "w3", 0), Text("w4", "w5 w6", 1)])
    # Its pooling needs the same number of end tokens in every text, which this tokenizer's pairs have.
    outcome = TextClassification().fit(model, tokenizer(), texts).judge(model, texts)
    for i, text in enumerate(texts.texts):
        with torch.inference_mode():
            logits = model(**tokenizer()(text.text, text.pair, return_tensors="pt", return_token_type_ids=False)).logits
        np.testing.assert_allclose(outcome.probabilities[i], logits.softmax(-1)[0], atol=1e-5)


def config(*names):
    return BertConfig(id2label=dict(enumerate(names)))


def test_labels_go_by_name_before_number():
    mnli = config("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
    data = ["entailment", "neutral", "contradiction"]
    assert label_numbers(data, mnli, data) == {"entailment": 2, "neutral": 1, "contradiction": 0}
    assert label_numbers(data, config("LABEL_0", "LABEL_1", "LABEL_2"), data)["entailment"] == 0
    assert label_numbers(["Not  Hate", "hate"], config("not-hate", "Hate")) == {"Not  Hate": 0, "hate": 1}
    swapped = {"NEGATIVE": "POSITIVE", "POSITIVE": "NEGATIVE"}  # each is said of the model's names, not of one another
    assert label_numbers(list(swapped), config(*swapped), given=swapped) == {"NEGATIVE": 1, "POSITIVE": 0}
    turned = {"A": "B", "B": "C", "C": "A"}
    assert label_numbers(list(turned), config(*turned), given=turned) == {"A": 1, "B": 2, "C": 0}
    assert label_numbers([1, 0], config("NEGATIVE", "POSITIVE")) == {1: 1, 0: 0}
    assert label_numbers(["LABEL_1"], config("LABEL_0", "LABEL_1")) == {"LABEL_1": 1}
    assert label_numbers(["pos", 3], config("good", "bad"), given={"pos": "Good", "3": 1}) == {"pos": 0, 3: 1}


@pytest.mark.parametrize(
    ("labels", "given"), [(["good", "odd"], {}), ([0, 2], {}), ([-1], {}), (["good"], {"good": "fine"})]
)
def test_unknown_labels_are_listed_beside_the_models(labels, given):
    with pytest.raises(BadInput, match=r"of the model: 0 = 'good', 1 = 'bad'"):
        label_numbers(labels, config("good", "bad"), given=given)


def test_a_column_of_texts_taken_for_labels_is_said_in_a_few_lines():
    with pytest.raises(BadInput, match=r"w0 w0.*… and 88 more are not the model's") as caught:
        label_numbers([f"w{i} " * 90 for i in range(100)], config(*(f"c{i}" for i in range(1000))))
    assert len(str(caught.value)) < 3000


def test_what_is_no_classification_is_refused():
    base = make(BertModel, BertConfig, **BERT)
    with pytest.raises(BadInput, match="no classification head"):
        TextClassification().fit(base, tokenizer(), corpus())
    model = make(BertForSequenceClassification, BertConfig, **BERT, num_labels=3)
    with pytest.raises(BadInput, match="needs a label on every example"):
        TextClassification().fit(model, tokenizer(), Corpus([Text("w1")]))
    with pytest.raises(BadInput, match=r"labels 'c0', 'c1', 'c2' are not the model's"):
        TextClassification().fit(model, tokenizer(), corpus())
    with pytest.raises(BadInput, match="no causal language model"):
        CausalLM().fit(base, tokenizer(), corpus())
    with pytest.raises(BadInput, match="at least two classes"):
        EmbeddingProbe().fit(base, tokenizer(), Corpus([Text("w1")]))
    lm = make(GPT2LMHeadModel, GPT2Config, **GPT)
    fitted = CausalLM().fit(lm, tokenizer(None), corpus())
    with pytest.raises(BadInput, match="no text of two or more tokens"):
        fitted.judge(lm, Corpus([Text("w1")]))
