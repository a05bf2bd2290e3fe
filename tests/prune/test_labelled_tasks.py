"""Tasks of further kinds of checkpoint: values by the library's own measure, losses that are the text's own."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import seqeval.metrics
import torch
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats
from sklearn import metrics as sk
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from headwise.analysis.corpus import batches
from headwise.analysis.corpus.reading import read_source
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import TASKS, choose_task, compare
from headwise.prune.tasks.token_classification import spans_of
from tests.prune.tiny_tasks import make
from tests.word_tokenizers import of_words

WORDS = [f"w{i}" for i in range(30)]
BERT = {
    "vocab_size": 36, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 24, "initializer_range": 0.6,
}  # fmt: skip
BART = {
    "vocab_size": 36, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 24,
    "init_std": 0.6, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2,
    "forced_eos_token_id": 3,
}  # fmt: skip
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def tokenizer(**options):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    return of_words(words, framed=True, pad_token="[PAD]", mask_token="[MASK]", eos_token="[SEP]", **options)


def corpus(kind, n=30, seed=0):
    draw = np.random.default_rng(seed)
    texts = []
    for i in range(n):
        words = [WORDS[w] for w in draw.integers(0, 30, 3 + i % 6)]
        other = " ".join(WORDS[w] for w in draw.integers(0, 30, 3 + i % 4))
        label = {
            "text-regression": lambda: float(draw.normal()),
            "embedding-similarity": lambda: float(draw.integers(0, 6)),
            "multi-label": lambda: " ".join(f"c{c}" for c in range(3) if draw.random() < 0.5),
            "token-classification": lambda words=words: " ".join(draw.choice(TAGS, len(words))),
            "minimal-pairs": lambda i=i: ["agreement", "islands"][i % 2],
        }.get(kind, lambda: None)()
        paired = kind in ("embedding-similarity", "minimal-pairs", "sequence-to-sequence")
        texts.append(Text(" ".join(words), other if paired else None, label))
    return Corpus(texts, f"made {seed}")


MODELS = {
    "text-regression": lambda: make(BertForSequenceClassification, BertConfig, **BERT, num_labels=1),
    "multi-label": lambda: make(
        BertForSequenceClassification, BertConfig, **BERT, id2label={i: f"c{i}" for i in range(3)},
        problem_type="multi_label_classification",
    ),
    "token-classification": lambda: make(
        BertForTokenClassification, BertConfig, **BERT, id2label=dict(enumerate(TAGS))
    ),
    "masked-lm": lambda: make(BertForMaskedLM, BertConfig, **BERT),
    "minimal-pairs": lambda: make(
        GPT2LMHeadModel, GPT2Config, vocab_size=36, n_embd=16, n_layer=2, n_head=2, n_positions=24,
        initializer_range=0.6,
    ),
    "embedding-similarity": lambda: make(BertModel, BertConfig, **BERT),
    "sequence-to-sequence": lambda: make(BartForConditionalGeneration, BartConfig, **BART),
}  # fmt: skip


def fitted_for(kind, size=5, **options):
    model = MODELS[kind]()
    extra = {"new_tokens": 6} if kind == "sequence-to-sequence" else {}
    return model, TASKS[kind](**extra).fit(model, tokenizer(**options), corpus(kind), batch_size=size)


@pytest.mark.parametrize("kind", MODELS)
def test_a_loss_is_the_texts_own_and_moves_the_model(kind):
    model, fitted = fitted_for(kind)
    losses = {}
    for size, side in ((1, "right"), (7, "right"), (30, "left")):
        for batch in batches(corpus(kind), tokenizer(padding_side=side), model=model, batch_size=size):
            for i, loss in zip(batch.index, fitted.losses(model, batch), strict=True):
                losses.setdefault(i, []).append(loss.item())
    assert len(losses) == 30
    for values in losses.values():
        np.testing.assert_allclose(values, values[0], atol=3e-5)
    assert len({round(values[0], 4) for values in losses.values()}) > 4
    fitted.losses(model, next(iter(batches(corpus(kind), tokenizer(), model=model)))).sum().backward()
    assert any(
        p.grad is not None and p.grad.abs().max() > 0 for n, p in model.named_parameters() if "q" in n or "c_attn" in n
    )


@pytest.mark.parametrize("kind", MODELS)
def test_judging_changes_nothing_and_compares_with_itself_as_nought(kind):
    model, fitted = fitted_for(kind)
    model.train()
    config = model.config.to_dict()
    whole = fitted.judge(model, corpus(kind, 40, 1))
    assert all(module.training for module in model.modules())
    assert model.config.to_dict() == config
    again = fitted_for(kind, 3, padding_side="left")[1].judge(model, corpus(kind, 40, 1))
    np.testing.assert_allclose(whole.per_example, again.per_example, atol=1e-5)
    found = json.loads(json.dumps(compare(whole, whole, resamples=100), allow_nan=False))
    assert found["drop"] == pytest.approx(0, abs=1e-9)
    assert found["dense"]["value"] == pytest.approx(whole.value)
    assert found["flips"] == {"lost": 0, "gained": 0}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std(unbiased=False))
    other = compare(whole, fitted.judge(model.eval(), corpus(kind, 40, 1)), resamples=200)
    low, high = other["interval"]
    assert low <= other["drop"] <= high or high - low < 1e-9


def test_the_default_follows_from_the_architecture():
    for kind, model in MODELS.items():
        expected = "causal-lm" if kind == "minimal-pairs" else kind
        assert choose_task(model(), tokenizer(), corpus(kind)).kind == expected
    bare = Corpus([Text("w1 w2")])
    unlabelled = {kind: choose_task(MODELS[kind](), tokenizer(), bare).kind for kind in MODELS}
    assert unlabelled["token-classification"] == unlabelled["text-regression"] == "agreement"
    assert unlabelled["masked-lm"] == "masked-lm"


# --- values by the library


def alone(model, text, **how):
    with torch.inference_mode():
        return model(**tokenizer()(text, return_tensors="pt"), **how).logits[0]


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_regression_is_the_correlation_of_scipy(metric):
    model, texts = MODELS["text-regression"](), corpus("text-regression")
    outcome = TASKS["text-regression"](metric=metric).fit(model, tokenizer(), texts).judge(model, texts)
    said = [alone(model, text.text).item() for text in texts.texts]
    right = [text.label for text in texts.texts]
    expected = getattr(stats, f"{metric}r")(right, said).statistic
    assert outcome.value == pytest.approx(expected, abs=1e-6)
    if metric == "spearman":
        assert outcome.per_example.mean() == pytest.approx(expected, abs=1e-6)  # no ties


def test_similarity_is_the_rank_correlation_of_cosines():
    model, texts = MODELS["embedding-similarity"](), corpus("embedding-similarity")
    outcome = TASKS["embedding-similarity"]().fit(model, tokenizer(), texts).judge(model, texts)

    def vector(text):
        with torch.inference_mode():
            return model(**tokenizer()(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    cosines = [torch.cosine_similarity(vector(t.text), vector(t.pair), dim=0).item() for t in texts.texts]
    assert outcome.value == pytest.approx(stats.spearmanr([t.label for t in texts.texts], cosines).statistic, abs=1e-6)


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_several_labels_are_scored_as_by_scikit_learn(average):
    model, texts = MODELS["multi-label"](), corpus("multi-label")
    outcome = TASKS["multi-label"](metric=f"{average}-f1").fit(model, tokenizer(), texts).judge(model, texts)
    said = np.array([(alone(model, text.text) > 0).int().tolist() for text in texts.texts])
    right = np.array([[f"c{c}" in text.label.split() for c in range(3)] for text in texts.texts])
    assert outcome.value == pytest.approx(sk.f1_score(right, said, average=average, zero_division=0))
    assert outcome.per_example == pytest.approx(sk.f1_score(right.T, said.T, average=None, zero_division=1))


@pytest.mark.parametrize("metric", ["span-f1", "accuracy"])
def test_tags_are_scored_as_by_seqeval(metric):
    model, texts = MODELS["token-classification"](), corpus("token-classification", 60)
    outcome = TASKS["token-classification"](metric=metric).fit(model, tokenizer(), texts).judge(model, texts)
    said = [[TAGS[i] for i in alone(model, text.text).argmax(-1)[1:-1]] for text in texts.texts]
    right = [text.label.split() for text in texts.texts]
    oracle = {"span-f1": seqeval.metrics.f1_score, "accuracy": seqeval.metrics.accuracy_score}[metric]
    assert outcome.value == pytest.approx(oracle(right, said))
    assert outcome.value > 0


def test_words_of_several_tokens_and_beyond_the_limit():
    """`w1.` is two tokens and one word; its tag is read off the first. Words that do not fit count as O."""
    model = MODELS["token-classification"]()
    texts = Corpus([Text("w1. w2 w3. w4", label="B-PER O B-LOC I-LOC")])
    fitted = TASKS["token-classification"]().fit(model, tokenizer(), texts, max_length=6)
    outcome = fitted.judge(model, texts)
    # [CLS] w1 . w2 w3 [SEP] fit.
    tags = alone(model, "w1. w2 w3").argmax(-1).tolist()
    assert outcome.predictions == [" ".join([TAGS[tags[1]], TAGS[tags[3]], TAGS[tags[4]], "O"])]
    assert outcome.skipped == {"words beyond the length limit, taken as O": 1}
    with pytest.raises(BadInput, match="3 tags for the 2 words"):
        TASKS["token-classification"]().fit(model, tokenizer(), Corpus([Text("w1 w2", label="O O O")]))


def test_spans_need_more_than_right_tags():
    assert spans_of(["B-PER", "I-PER", "O", "B-LOC"]) == {("PER", 0, 1), ("LOC", 3, 3)}
    assert spans_of(["I-PER", "O", "I-PER", "I-LOC"]) == {("PER", 0, 0), ("PER", 2, 2), ("LOC", 3, 3)}


def test_gaps_are_the_texts_own_and_their_perplexity_is_that_of_cross_entropy():
    model, texts = MODELS["masked-lm"](), corpus("masked-lm")
    fitted = TASKS["masked-lm"](share=0.4).fit(model, tokenizer(), texts, seed=3)
    outcome = fitted.judge(model, texts)
    nats = count = 0
    for text in texts.texts:
        ids = tokenizer()(text.text, return_tensors="pt")["input_ids"]
        gaps = fitted.gaps([text], ~torch.isin(ids, torch.tensor([2, 3])))
        assert int(gaps.sum()) == max(1, round(0.4 * (ids.shape[1] - 2)))
        with torch.inference_mode():
            logits = model(input_ids=ids.masked_fill(gaps, 4)).logits
        nats += torch.nn.functional.cross_entropy(logits[gaps], ids[gaps], reduction="sum").item()
        count += int(gaps.sum())
    assert outcome.value == pytest.approx(np.exp(nats / count), rel=1e-5)
    other = TASKS["masked-lm"](share=0.4).fit(model, tokenizer(), texts, seed=4).judge(model, texts)
    assert other.value != outcome.value


def test_the_likelier_sentence_wins():
    model, texts = MODELS["minimal-pairs"](), corpus("minimal-pairs")
    outcome = TASKS["minimal-pairs"]().fit(model, tokenizer(), texts).judge(model, texts)

    def likelihood(text):
        ids = tokenizer()(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            chances = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        return chances.gather(1, ids[0, 1:, None]).sum().item()

    right = [likelihood(text.text) > likelihood(text.pair) for text in texts.texts]
    assert outcome.per_example.tolist() == right
    assert 0 < outcome.value < 1
    found = compare(outcome, outcome)
    assert set(found["per_class"]) == {"agreement", "islands"}
    assert found["test"] == "McNemar, exact"


@pytest.mark.parametrize(("metric", "beams"), [("chrf", 1), ("exact-match", 1), ("rouge-2", 1), ("rouge-l", 3)])
def test_what_is_written_is_scored_as_by_the_library(metric, beams):
    model, texts = MODELS["sequence-to-sequence"](), corpus("sequence-to-sequence", 12)
    task = TASKS["sequence-to-sequence"](metric=metric, beams=beams, new_tokens=6)
    tok = tokenizer()
    written = []
    for text in texts.texts:
        inputs = tok(text.text, return_tensors="pt")
        found = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=6,
            num_beams=beams, do_sample=False,
        )  # fmt: skip
        written.append(tok.batch_decode(found, skip_special_tokens=True)[0])
    # Half of the texts are to be written as they are.
    given = [replace(t, pair=w) if i % 2 else t for i, (t, w) in enumerate(zip(texts.texts, written, strict=True))]
    outcome = task.fit(model, tok, texts).judge(model, Corpus(given))
    assert list(outcome.predictions) == written
    if metric == "exact-match":
        assert outcome.value == 0.5
    elif metric.startswith("rouge"):
        name = {"rouge-2": "rouge2", "rouge-l": "rougeL"}[metric]
        scorer = RougeScorer([name])
        each = [scorer.score(t.pair, w)[name].fmeasure for w, t in zip(written, given, strict=True)]
        assert outcome.value == pytest.approx(np.mean(each))
    else:
        each = [sacrebleu.sentence_chrf(w, [t.pair]).score / 100 for w, t in zip(written, given, strict=True)]
        assert outcome.value == pytest.approx(np.mean(each))


# --- what does not fit


@pytest.mark.parametrize(
    ("kind", "texts", "message"),
    [
        ("text-regression", [Text("w1", label="high")], "needs a number as its label, got 'high'"),
        ("multi-label", [Text("w1", label="c0 c9")], "'c9' are not the model's"),
        ("multi-label", [Text("w1")], "needs its list of classes"),
        ("token-classification", [Text("w1", label="B-ORG")], "'B-ORG' are not the model's"),
        ("minimal-pairs", [Text("w1")], "a wrong sentence beside each right one"),
        ("embedding-similarity", [Text("w1", label=1.0)], "a second text beside each"),
        ("sequence-to-sequence", [Text("w1")], "what should be written"),
    ],
)
def test_texts_that_do_not_fit_are_refused(kind, texts, message):
    with pytest.raises(BadInput, match=message):
        TASKS[kind]().fit(MODELS[kind](), tokenizer(), Corpus(texts))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "embedding-similarity"])
def test_models_that_do_not_fit_are_refused(kind):
    with pytest.raises(BadInput, match="BertModel"):
        TASKS[kind]().fit(MODELS["embedding-similarity"](), tokenizer(), corpus(kind))


def test_lists_of_tags_and_of_classes_are_read(tmp_path):
    rows = [{"tokens": ["w1", "w2"], "tags": ["B-PER", "O"]}, {"tokens": ["w3"], "tags": ["O"]}]
    file = tmp_path / "tagged.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_source(str(file), text="tokens", label="tags")
    assert [(text.text, text.label) for text in found.texts] == [("w1 w2", "B-PER O"), ("w3", "O")]
    import datasets

    tags = datasets.Features({
        "tokens": datasets.List(datasets.Value("string")),
        "tags": datasets.List(datasets.ClassLabel(names=TAGS)),
    })  # fmt: skip
    made = datasets.Dataset.from_dict({"tokens": [["w1", "w2"]], "tags": [[1, 0]]}, features=tags)
    datasets.DatasetDict({"train": made}).save_to_disk(str(tmp_path / "set"))
    found = read_source(str(tmp_path / "set"), text="tokens", label="tags")
    assert found.texts[0].label == "B-PER O"
    file.write_text(json.dumps({"tokens": ["w1"], "tags": ["two words"]}) + "\n")
    with pytest.raises(BadInput, match="expected names without blanks"):
        read_source(str(file), text="tokens", label="tags")


def test_neither_what_is_read_nor_what_is_written_runs_out_of_positions():
    model = MODELS["sequence-to-sequence"]()
    long = " ".join(WORDS[i % 30] for i in range(60))
    texts = Corpus([Text(long, pair=long), Text("w1 w2", pair="w2 w1")])
    fitted = TASKS["sequence-to-sequence"]().fit(model, tokenizer(), texts)
    (batch,) = batches(texts, tokenizer(), model=model, batch_size=2)
    assert torch.isfinite(fitted.losses(model, batch)).all()
    assert len(fitted.judge(model, texts).predictions) == 2
