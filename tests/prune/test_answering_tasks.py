"""Tasks of answering: spans of passages, choices, pairs told apart; values by the library or by hand."""

import json

import numpy as np
import pytest
import torch
from torchmetrics.functional.text import squad
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    GPT2Config,
    GPT2LMHeadModel,
)

from headwise.analysis.corpus import Corpus, Text, batches, read_source
from headwise.analysis.errors import BadInput
from headwise.prune.importance.outputs import Outputs
from headwise.prune.tasks import TASKS, choose_task, compare
from headwise.prune.tasks.spans import score_of
from tests.prune.tiny_tasks import make
from tests.word_tokenizers import of_words

WORDS = [f"w{i}" for i in range(30)]
BERT = {
    "vocab_size": 35, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 24, "initializer_range": 0.6,
}  # fmt: skip
GPT = {"vocab_size": 35, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "initializer_range": 0.6}


def tokenizer(pairs=True, **options):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    more = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if pairs else {"eos_token": "[SEP]"}
    kinds = ["input_ids", "token_type_ids", "attention_mask"]
    named = {"pad_token": "[PAD]", "mask_token": "[MASK]", "model_input_names": kinds}
    return of_words(words, framed=pairs, **named, **more, **options)


def said(draw, low, high):
    return " ".join(WORDS[w] for w in draw.integers(0, 30, draw.integers(low, high)))


def corpus(kind, n=24, seed=0):
    draw = np.random.default_rng(seed)
    texts = []
    for i in range(n):
        if kind == "question-answering":
            passage = said(draw, 5, 14)
            start = draw.integers(0, 3)
            answers = [" ".join(passage.split()[start : start + 2]), passage.split()[-1]][: 1 + i % 2]
            texts.append(Text(said(draw, 2, 5), passage, "\n".join(answers) if i % 4 else ""))
        elif kind == "minimal-pairs":
            texts.append(Text(said(draw, 2, 8), said(draw, 2, 8), ["a", "b"][i % 2]))
        else:
            choices = tuple(said(draw, 1, 5) for _ in range(2 + i % 3))
            texts.append(Text(said(draw, 2, 6), None if i % 2 else said(draw, 1, 3), i % 2, choices=choices))
    return Corpus(texts, f"made {seed}")


MODELS = {
    "question-answering": lambda: make(BertForQuestionAnswering, BertConfig, **BERT),
    "multiple-choice": lambda: make(BertForMultipleChoice, BertConfig, **BERT),
    "multiple-choice, causal": lambda: make(GPT2LMHeadModel, GPT2Config, **GPT),
    "minimal-pairs": lambda: make(BertForMaskedLM, BertConfig, **BERT),
}


def fitted_for(case, size=5, **options):
    kind, model = case.split(",")[0], MODELS[case]()
    tok = tokenizer(pairs="causal" not in case, **options)
    return model, tok, TASKS[kind]().fit(model, tok, corpus(kind), batch_size=size)


@pytest.mark.parametrize("case", MODELS)
def test_a_loss_is_the_texts_own_and_moves_the_model(case):
    kind = case.split(",")[0]
    losses = {}
    for size, side in ((1, "right"), (7, "right"), (24, "left")):
        model, tok, fitted = fitted_for(case, padding_side=side)
        for batch in batches(corpus(kind), tok, model=model, batch_size=size):
            for i, loss in zip(batch.index, fitted.losses(model, batch), strict=True):
                losses.setdefault(i, []).append(loss.item())
    assert len(losses) == 24
    for values in losses.values():
        np.testing.assert_allclose(values, values[0], atol=3e-5)
    assert len({round(values[0], 4) for values in losses.values()}) > 4
    fitted.losses(model, next(iter(batches(corpus(kind), tok, model=model)))).sum().backward()
    weights = [p for n, p in model.named_parameters() if "query.weight" in n or "c_attn.weight" in n]
    assert all(weight.grad.abs().max() > 0 for weight in weights)


@pytest.mark.parametrize("case", MODELS)
def test_judging_changes_nothing_and_does_not_depend_on_batches(case):
    kind = case.split(",")[0]
    model, _, fitted = fitted_for(case)
    model.train()
    config = model.config.to_dict()
    whole = fitted.judge(model, corpus(kind, 30, 1))
    assert all(module.training for module in model.modules())
    assert model.config.to_dict() == config
    again = fitted_for(case, 3, padding_side="left")[2].judge(model, corpus(kind, 30, 1))
    np.testing.assert_allclose(whole.per_example, again.per_example, atol=1e-5)
    found = json.loads(json.dumps(compare(whole, whole, resamples=50), allow_nan=False))
    assert (found["drop"], found["flips"]) == (0, {"lost": 0, "gained": 0})
    assert whole.texts == list(corpus(kind, 30, 1).texts)


def test_the_default_follows_from_model_and_texts():
    for case, model in MODELS.items():
        kind = case.split(",")[0]
        expected = "masked-lm" if kind == "minimal-pairs" else kind
        assert choose_task(model(), tokenizer(), corpus(kind)).kind == expected


# --- questions


def logits_of(model, tok, question, passage):
    with torch.inference_mode():
        out = model(**tok(question, passage, return_tensors="pt"))
    return out.start_logits[0].double(), out.end_logits[0].double()


def best_by_hand(model, tok, question, parts):
    """The best span over parts of a passage, each with the whole question, trying all spans one by one."""
    best, none, answer = -np.inf, np.inf, ""
    head = 2 + len(question.split())
    for words in parts:
        starts, ends = logits_of(model, tok, question, " ".join(words))
        none = min(none, float(starts[0] + ends[0]))
        for a in range(len(words)):
            for b in range(a, min(a + 3, len(words))):
                score = float(starts[head + a] + ends[head + b])
                if score > best:
                    best, answer = score, " ".join(words[a : b + 1])
    return "" if none > best else answer


def test_answers_are_the_best_spans_and_are_scored_as_by_torchmetrics():
    model, tok, texts = MODELS["question-answering"](), tokenizer(), corpus("question-answering")
    task = TASKS["question-answering"](longest=3)
    outcome = task.fit(model, tok, texts).judge(model, texts)
    said = [best_by_hand(model, tok, t.text, [t.pair.split()]) for t in texts.texts]
    assert [s.replace("no answer", "") for s in outcome.predictions] == said
    assert "no answer" in outcome.predictions
    preds = [{"prediction_text": answer, "id": str(i)} for i, answer in enumerate(said)]
    right = [t.label.split("\n") for t in texts.texts]
    target = [{"answers": {"text": r, "answer_start": [0] * len(r)}, "id": str(i)} for i, r in enumerate(right)]
    oracle = squad(preds, target)
    assert outcome.value == pytest.approx(float(oracle["f1"]) / 100)
    exact = TASKS["question-answering"](longest=3, metric="exact-match").fit(model, tok, texts).judge(model, texts)
    assert exact.value == pytest.approx(float(oracle["exact_match"]) / 100)
    assert outcome.beside == {"exact-match": exact.value, "f1": outcome.value}
    assert compare(outcome, outcome, resamples=50)["beside"]["f1"] == {"dense": outcome.value, "cut": outcome.value}
    # A question that always has an answer gets one.
    always = TASKS["question-answering"](longest=3, no_answer=False).fit(model, tok, texts).judge(model, texts)
    assert "no answer" not in always.predictions


def test_long_passages_are_read_in_overlapping_windows():
    model, tok = MODELS["question-answering"](), tokenizer()
    draw = np.random.default_rng(5)
    question, words = "w1 w2", said(draw, 50, 51).split()
    task = TASKS["question-answering"](window=20, stride=4, longest=3)
    texts = Corpus([Text(question, " ".join(words), "w3"), Text("w1 " * 20, "w2", "w2")])
    outcome = task.fit(model, tok, texts).judge(model, texts)
    # 20 tokens less [CLS], two words, two [SEP]: 15 of the passage, each window 11 further on.
    parts = [words[at : at + 15] for at in range(0, 37, 11)]
    assert parts[-1][-1] == words[-1] or len(parts[-1]) == 15
    last = [words[at : at + 15] for at in range(0, len(words), 11)]
    stop = next(i for i, part in enumerate(last) if part[-1:] == words[-1:] and i * 11 + len(part) == len(words))
    assert outcome.predictions == [best_by_hand(model, tok, question, last[: stop + 1])]
    assert outcome.skipped == {"question too long for its passage": 1}


def test_the_loss_of_an_answer_is_that_of_its_tokens():
    model, tok = MODELS["question-answering"](), tokenizer()
    texts = Corpus([Text("w1 w2", "w5 w6 w7 w8", "w6 w7"), Text("w1", "w5 w6", ""), Text("w1", "w5 w6", "w9\nw6")])
    fitted = TASKS["question-answering"]().fit(model, tok, texts)
    batch = next(iter(batches(texts, tok, model=model, sort=False)))
    places = [(5, 6), (0, 0), (4, 4)]
    for text, (start, end), loss in zip(texts.texts, places, fitted.losses(model, batch), strict=True):
        starts, ends = logits_of(model, tok, text.text, text.pair)
        expected = -(starts.log_softmax(-1)[start] + ends.log_softmax(-1)[end]) / 2
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_starts_and_ends_are_outputs_that_scores_can_weigh_by():
    model, tok, texts = MODELS["question-answering"](), tokenizer(), corpus("question-answering")
    batch = next(iter(batches(texts, tok, model=model)))
    losses = Outputs(3).losses(model, batch)
    assert losses.shape == (24,)
    assert torch.equal(losses, Outputs(3).losses(model, batch))
    losses.pow(2).sum().backward()
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0


def test_normalisation_is_that_of_squad():
    assert score_of("The  Cat,", ["a cat"]) == (1, 1)
    assert score_of("cat dog", ["dog"]) == (0, pytest.approx(2 / 3))
    assert score_of("", []) == (1, 1)
    assert score_of("cat", []) == (0, 0)


# --- choices


def test_a_head_chooses_as_it_does_by_itself():
    model, tok, texts = MODELS["multiple-choice"](), tokenizer(), corpus("multiple-choice")
    outcome = TASKS["multiple-choice"]().fit(model, tok, texts).judge(model, texts)
    said = []
    for text in texts.texts:
        second = [f"{text.pair} {choice}" if text.pair else choice for choice in text.choices]
        encoded = tok([text.text] * len(second), second, return_tensors="pt", padding=True)
        with torch.inference_mode():
            logits = model(**{name: value[None] for name, value in encoded.items()}).logits[0]
        said.append(int(logits.argmax()))
    assert outcome.predictions == [t.choices[i] for t, i in zip(texts.texts, said, strict=True)]
    assert outcome.value == np.mean([i == t.label for t, i in zip(texts.texts, said, strict=True)])


@pytest.mark.parametrize("normalise", ["characters", "tokens", "none"])
def test_a_language_model_chooses_the_likeliest_answer(normalise):
    model, tok, texts = MODELS["multiple-choice, causal"](), tokenizer(pairs=False), corpus("multiple-choice")
    outcome = TASKS["multiple-choice"](normalise=normalise).fit(model, tok, texts).judge(model, texts)
    for text, answer in zip(texts.texts, outcome.predictions, strict=True):
        scores = []
        for choice in text.choices:
            context = f"{text.text} {text.pair}" if text.pair else text.text
            ids = tok(f"{context} {choice}", return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                chances = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            each = chances.gather(1, ids[0, 1:, None])[len(context.split()) - 1 :, 0]
            assert len(each) == len(choice.split())
            scores.append(each.sum().item() / {"characters": len(choice), "tokens": len(each), "none": 1}[normalise])
        assert answer == text.choices[int(np.argmax(scores))]


def test_choices_and_answers_are_read_from_the_usual_tables(tmp_path):
    def read(rows, **columns):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_source(str(file), **columns)

    arc = [{"q": "w1", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "key": "B"},
           {"q": "w2", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "key": "1"}]  # fmt: skip
    found = read(arc, text="q", choices="choices", label="key")
    assert [(t.choices, t.right) for t in found.texts] == [(("x", "y"), 1), (("x", "y"), 0)]
    swag = [{"c": "w1", "e0": "x", "e1": "y", "label": 1}, {"c": "w1", "e0": "x", "e1": "z", "label": 0}]
    found = read(swag, text="c", choices=["e0", "e1"], label="label")
    assert [t.right for t in found.texts] == [1, 0]
    assert found.texts[0].id != found.texts[1].id
    squad_like = [{"question": "w1?", "context": "w2 w3", "answers": {"text": ["w2", "w2", "w3"], "answer_start": [0]}},
                  {"question": "w4?", "context": "w2 w3", "answers": {"text": [], "answer_start": []}}]  # fmt: skip
    found = read(squad_like, text="question", pair="context", label="answers")
    assert [t.label for t in found.texts] == ["w2\nw3", ""]
    assert found.skipped == {}
    with pytest.raises(BadInput, match="as choices, expected texts"):
        read([{"q": "w1", "c": None}], text="q", choices="c")


@pytest.mark.parametrize(
    ("case", "texts", "message"),
    [
        ("question-answering", [Text("w1", label="w2")], "the passage stands in the second text"),
        ("question-answering", [Text("w1", "w2")], "needs its answer as label"),
        ("multiple-choice", [Text("w1", label=0)], "two or more choices"),
        ("multiple-choice", [Text("w1", label=2, choices=("a", "b"))], "label 2 is none of the 2 choices"),
    ],
)
def test_texts_that_do_not_fit_are_refused(case, texts, message):
    with pytest.raises(BadInput, match=message):
        TASKS[case]().fit(MODELS[case](), tokenizer(), Corpus(texts))


# --- pairs told apart by a model that fills gaps


def test_every_token_is_masked_in_turn():
    model, tok, texts = MODELS["minimal-pairs"](), tokenizer(), corpus("minimal-pairs")
    outcome = TASKS["minimal-pairs"]().fit(model, tok, texts).judge(model, texts)

    def likelihood(text):
        ids = tok(text, return_tensors="pt")["input_ids"]
        total = 0.0
        for place in range(1, ids.shape[1] - 1):
            gapped = ids.clone()
            gapped[0, place] = tok.mask_token_id
            with torch.inference_mode():
                total += model(input_ids=gapped).logits[0, place].log_softmax(-1)[ids[0, place]].item()
        return total

    right = [likelihood(text.text) > likelihood(text.pair) for text in texts.texts]
    assert outcome.per_example.tolist() == right
    assert 0 < outcome.value < 1
