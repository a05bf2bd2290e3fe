import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, GPT2Config, GPT2Model

from headwise.analysis.analyze import analyze
from headwise.analysis.corpus.portions import texts_that_fit
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.similarity import MEASURES, Hellinger
from headwise.analysis.sites import find_sites, heads_of

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted.planted_model().save_pretrained(folder)
    planted.planted_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def evidence(folder):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return analyze(model, tokenizer, planted.planted_corpus())


def test_the_planted_heads_get_exactly_their_roles(evidence):
    expected = [[] for _ in range(10)]
    expected[planted.PREVIOUS], expected[planted.PUNCTUATION] = ["previous"], ["punctuation"]
    expected[planted.DEAD] = ["dormant"]
    assert evidence.roles() == expected
    assert evidence["roles/previous/score"][planted.PREVIOUS] == pytest.approx(1, abs=1e-4)
    assert evidence["roles/punctuation/score"][planted.PUNCTUATION] == pytest.approx(1, abs=1e-3)
    primary = evidence["roles/primary"]
    names = evidence.facts["settings"]["roles"]
    assert [names[i] if i >= 0 else None for i in primary[:5]] == ["previous", "punctuation", None, None, "dormant"]


def test_the_two_equal_heads_are_the_only_cluster(evidence):
    label = evidence["clusters/label"]
    assert label[planted.TWIN] == label[planted.OTHER_TWIN]
    assert len(set(label.tolist())) == 9
    for measure in ("pearson", "cosine", "hellinger"):
        r = evidence[f"similarity/{measure}"]
        assert r[planted.TWIN, planted.OTHER_TWIN] == pytest.approx(1, abs=1e-6)
    assert np.flatnonzero(~evidence["clusters/representative"]).tolist() == [planted.OTHER_TWIN]


@pytest.mark.parametrize(
    ("measure", "way"),
    [("pearson", {"ordinary": True}), ("cosine", {}), ("hellinger", {"per_text": True}), ("jensen_shannon", {})],
)
def test_clusters_by_number_are_tried_on_resampled_texts_under_every_measure(folder, measure, way):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    how = {"measures": ["replaceability", measure], "roles": ("self",), "clusters": 4, **way}
    found = analyze(model, tokenizer, planted.planted_corpus(30), **how)
    label = found["clusters/label"]
    assert len(set(label.tolist())) == 4
    assert label[planted.TWIN] == label[planted.OTHER_TWIN]
    # Uniform heads have no similarity, in the whole and in every resample alike.
    assert 0.3 < found.facts["clusters"]["mean"] < 1 + 1e-9
    assert found.facts["clusters"]["blocks"] > 10
    assert found.facts["clusters"]["clusters"] == 4


class Own(Hellinger):
    """A measure of somebody's, which keeps no sums by part of the texts."""

    def __init__(self, sites):
        super().__init__(sites)

    def result(self):
        return {name.replace("hellinger", "own"): array for name, array in super().result().items()}


def test_a_measure_of_ones_own_takes_one_line(folder, monkeypatch):
    monkeypatch.setitem(MEASURES, "own", Own)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = analyze(
        model, tokenizer, planted.planted_corpus(30), measures=["own", "hellinger"], roles=("self",), clusters=4
    )
    np.testing.assert_array_equal(found["similarity/own"], found["similarity/hellinger"])
    assert len(set(found["clusters/label"].tolist())) == 4
    assert "blocks" not in found.facts["clusters"], "its clusters are not tried on resampled texts"


def test_the_dead_head_is_the_only_dormant_one(evidence):
    assert np.flatnonzero(evidence["statistics/dormant"]).tolist() == [planted.DEAD]
    assert evidence["statistics/context_norm"][planted.DEAD] == 0
    assert evidence["roles/dormant/score"][planted.DEAD] == pytest.approx(1)
    # Its firmness is all on the token before, so that "confident" says nothing more of the head of that role.
    assert evidence["roles/confident/score"][planted.PREVIOUS] == pytest.approx(
        evidence["statistics/confidence"][planted.PREVIOUS]
    )
    assert evidence["roles/confident/excess"][planted.PREVIOUS] > 0.8
    assert not evidence["roles/confident/assigned"].any()


def test_indifferent_heads_are_on_the_uniform_line_and_at_chance(evidence):
    for head in (planted.DEAD, *range(5, 10)):
        assert evidence["statistics/normalised_entropy"][head] == pytest.approx(1, abs=1e-5)
        for role in ("previous", "next", "self", "window", "first-token", "separator", "punctuation", "broad"):
            assert abs(evidence[f"roles/{role}/excess"][head]) < 1e-3
        assert np.isnan(evidence["similarity/pearson"][head, planted.TWIN])


def test_evidence_says_how_it_was_measured(evidence, folder, tmp_path):
    facts = evidence.facts
    assert facts["model"]["id"] == str(folder)
    assert (facts["model"]["kernel"], facts["model"]["dtype"]) == ("sdpa", "float32")
    assert facts["texts"]["count"] == 150
    assert facts["coreference"]["texts"]["count"] >= 600
    assert facts["settings"]["seed"] == 0
    assert facts["roles"]["previous"] == "attends to the token before"
    assert list(facts["roles"]) == facts["settings"]["roles"]
    evidence.save(tmp_path)
    again = Evidence.load(tmp_path)
    assert again.roles() == evidence.roles()


def test_order_and_batches_of_the_texts_do_not_matter(evidence, folder):
    corpus = planted.planted_corpus()
    turned = Corpus(list(reversed(corpus.texts)), corpus.source)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    roles = [name for name in evidence.facts["settings"]["roles"] if name != "coreference"]
    other = analyze(model, tokenizer, turned, batch_size=7, roles=roles)
    for name, array in other.arrays.items():
        part = name.rpartition("/")[2]
        if part in ("p", "q", "primary", "linkage", "order", "low", "high"):
            continue
        np.testing.assert_allclose(evidence[name].astype(float), array.astype(float), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_random_model_has_no_role(kind, seed):
    tokenizer = planted.planted_tokenizer()
    torch.manual_seed(seed)
    if kind == "bert":
        size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
        model = BertModel(BertConfig(**size, vocab_size=len(tokenizer), max_position_embeddings=128)).eval()
    else:
        model = GPT2Model(GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=len(tokenizer), n_positions=128)).eval()
    found = analyze(model, tokenizer, planted.planted_corpus(60, seed), measures=["pearson"])
    assert found.roles() == [[]] * 8


def test_batches_fit_the_memory():
    sites = find_sites(planted.planted_model())
    heads = len(heads_of(sites))
    assert texts_that_fit(heads, 40, 200 * 2**20) == 32
    assert texts_that_fit(heads, 40, memory=10 * 40 * 40 * 8 * 5) == 5
    assert texts_that_fit(heads, 4096, memory=1) == 1


def test_unknown_names_are_refused_before_any_work():
    with pytest.raises(BadInput, match="roles: got 'sink', expected some of previous"):
        analyze(torch.nn.Linear(1, 1), None, Corpus([]), roles=["sink"])
