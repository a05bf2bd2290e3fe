"""What every task keeps to, and which one is the default."""

import json

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from headwise.analysis.corpus import Corpus, Text, batches
from headwise.prune.tasks import TASKS, CausalLM, EmbeddingProbe, choose_task, compare
from headwise.prune.tasks.compare import agreement
from tests.prune.tiny_tasks import BERT, GPT, changed, corpus, make, tokenizer


def test_the_table_is_what_a_recipe_may_say():
    assert all(task.model_fields["kind"].default == kind for kind, task in TASKS.items())
    assert TypeAdapter(CausalLM).validate_python({"kind": "causal-lm", "window": 64}).window == 64
    with pytest.raises(ValidationError):
        CausalLM(windows=3)
    with pytest.raises(ValidationError):
        EmbeddingProbe(metric="rouge")


def test_the_default_follows_from_checkpoint_and_texts():
    labelled, bare = corpus(), Corpus([Text(t.text) for t in corpus().texts])
    pairs = Corpus([Text(t.text, "x") for t in bare.texts])
    classifier = make(BertForSequenceClassification, BertConfig, **BERT, num_labels=3)
    base = make(BertModel, BertConfig, **BERT)
    chosen = [
        choose_task(make(GPT2LMHeadModel, GPT2Config, **GPT), None, labelled).kind,
        choose_task(classifier, None, labelled).kind,
        choose_task(classifier, None, bare).kind,
        choose_task(base, None, labelled).kind,
        choose_task(base, None, bare).kind,
        choose_task(base, None, pairs).kind,
        choose_task(make(BertForMaskedLM, BertConfig, **BERT), None, labelled).kind,  # no mask token: no tokenizer
    ]
    assert chosen == [
        "causal-lm", "text-classification", "agreement", "embedding-probe", "agreement", "embedding-retrieval",
        "agreement",
    ]  # fmt: skip


# --- every task: losses of a text do not depend on its company, looking changes nothing, gradients flow


EVERY = {
    "text-classification": lambda: make(
        BertForSequenceClassification, BertConfig, **BERT, id2label={0: "c0", 1: "c1", 2: "c2"}
    ),
    "causal-lm": lambda: make(GPT2LMHeadModel, GPT2Config, **GPT),
    "embedding-probe": lambda: make(BertModel, BertConfig, **BERT),
    "embedding-retrieval": lambda: make(BertModel, BertConfig, **BERT),
    "agreement": lambda: make(BertModel, BertConfig, **BERT),
    "agreement, tokens": lambda: make(BertForMaskedLM, BertConfig, **BERT),
    "agreement, classes": lambda: make(BertForSequenceClassification, BertConfig, **BERT, num_labels=3),
    "agreement, decoder": lambda: make(LlamaForCausalLM, LlamaConfig, **{**BERT, "max_position_embeddings": 64}),
}


def fitted_for(case):
    model = EVERY[case]()
    task = TASKS[case.split(",")[0]]()
    return model, task.fit(model, tokenizer(), corpus(), batch_size=5)


@pytest.mark.parametrize("case", EVERY)
def test_a_loss_is_the_texts_own_and_moves_the_model(case):
    model, fitted = fitted_for(case)
    # Dropout would make every call differ.
    losses = {}
    for size, side in ((1, "right"), (7, "right"), (24, "left")):
        for batch in batches(corpus(), tokenizer(padding_side=side), model=model, batch_size=size):
            found = fitted.losses(model, batch)
            assert found.shape == (len(batch.texts),)
            for i, loss in zip(batch.index, found, strict=True):
                losses.setdefault(i, []).append(loss.item())
    for values in losses.values():
        np.testing.assert_allclose(values, values[0], atol=2e-5)
    assert len({round(v[0], 4) for v in losses.values()}) > 4
    batch = next(iter(batches(corpus(), tokenizer(), model=model)))
    fitted.losses(model, batch).sum().backward()
    weight = next(
        p for name, p in model.named_parameters() if name.endswith(("query.weight", "q_proj.weight", "c_attn.weight"))
    )
    assert weight.grad is not None
    assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("case", EVERY)
def test_judging_changes_nothing_and_does_not_depend_on_batches(case):
    model, fitted = fitted_for(case)
    model.train()
    model.base_model.eval()
    flags = [module.training for module in model.modules()]
    config = model.config.to_dict()
    whole = fitted.judge(model, corpus(seed=1, source="other"))
    assert [module.training for module in model.modules()] == flags
    assert model.config.to_dict() == config
    assert all(p.grad is None for p in model.parameters())
    other = TASKS[case.split(",")[0]]().fit(model, tokenizer(padding_side="left"), corpus(), batch_size=3)
    again = other.judge(model, corpus(seed=1, source="other"))
    np.testing.assert_allclose(whole.per_example, again.per_example, atol=1e-5)
    assert whole.value == pytest.approx(again.value, abs=1e-5)
    assert [t.text.split()[0] for t in whole.texts] == [t.text.split()[0] for t in corpus(seed=1).texts]


@pytest.mark.parametrize("case", EVERY)
def test_a_comparison_is_plain_data_and_with_itself_is_nought(case):
    model, fitted = fitted_for(case)
    judged = corpus(40, seed=1, source="other")
    dense, cut = fitted.judge(model, judged), fitted.judge(changed(model), judged)
    same = json.loads(json.dumps(compare(dense, dense, resamples=200), allow_nan=False))
    assert same["drop"] == pytest.approx(0, abs=1e-6)
    assert same["p"] == 1
    assert same["flips"] == {"lost": 0, "gained": 0}
    found = json.loads(json.dumps(compare(dense, cut, resamples=200), allow_nan=False))
    assert found["interval"][0] <= found["drop"] <= found["interval"][1]
    assert found["upper"] >= found["drop"]
    assert found["n"] == len(judged)
    if not case.startswith("agreement"):
        assert found["dense"]["value"] == pytest.approx(dense.value)
        assert found["cut"]["value"] == pytest.approx(cut.value)
        worse = dense.value - cut.value if dense.higher_is_better else cut.value - dense.value
        assert found["drop"] == pytest.approx(worse, abs=1e-9)
    else:
        assert found["cut"]["value"] == pytest.approx(agreement(dense, cut).mean())
        assert found["cut"]["value"] < 1
    assert len(found["changed"]) <= 10
