import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.redundancy import cluster, represent, stability


def alike(heads=6, seed=0):
    rows = np.random.default_rng(seed).normal(size=(heads, 8))
    return np.corrcoef(rows)


def test_clusters_are_scipys():
    matrix = alike(12)
    tree = linkage(squareform(1 - matrix, checks=False), "average")
    for threshold in (0.1, 0.4):
        mine = cluster(matrix, threshold=threshold).label
        theirs = fcluster(tree, 1 - threshold, "distance")
        assert ((mine[:, None] == mine) == (theirs[:, None] == theirs)).all()
    assert len(set(cluster(matrix, clusters=5).label)) == 5


def test_copies_are_found_across_sites_and_the_important_one_stands_for_them():
    matrix = np.eye(6) * 0.5 + 0.5 * np.eye(6)
    for group in ([0, 4], [1, 2, 5]):
        matrix[np.ix_(group, group)] = 1 - 1e-7
    found = cluster(matrix, importance=np.array([1.0, 5, 6, 0, 2, 3]))
    assert found.label.tolist() == [0, 1, 1, 2, 0, 1]
    assert np.flatnonzero(found.representative).tolist() == [2, 3, 4]
    assert found.members() == [[1, 2, 5], [0, 4]]
    assert sorted(found.order.tolist()) == list(range(6))


def test_without_importance_the_medoid_stands_for_the_cluster():
    matrix = np.array([[1, 0.9, 0.6], [0.9, 1, 0.9], [0.6, 0.9, 1]])
    assert cluster(matrix, threshold=0.5).representative.tolist() == [False, True, False]


def test_a_cluster_of_unknown_importance_keeps_its_medoid_and_the_rule_is_told():
    matrix = np.array(
        [[1, 0.9, 0.6, 0, 0], [0.9, 1, 0.9, 0, 0], [0.6, 0.9, 1, 0, 0], [0, 0, 0, 1, 0.9], [0, 0, 0, 0.9, 1]]
    )
    importance = np.array([np.nan, np.nan, np.nan, np.nan, -2.0])
    found = cluster(matrix, threshold=0.5, importance=importance)
    assert np.flatnonzero(found.representative).tolist() == [1, 4]
    heads = [("0", i) for i in range(5)]
    medoids = Evidence(heads, cluster(matrix, threshold=0.5).arrays(), {"clusters": {"threshold": 0.5}})
    assert np.flatnonzero(medoids["clusters/representative"]).tolist() == [1, 3]
    chosen = represent(medoids, importance, "gradient")
    assert np.flatnonzero(chosen["clusters/representative"]).tolist() == [1, 4]
    assert chosen.facts["clusters"] == {"threshold": 0.5, "representative": "gradient"}
    assert np.flatnonzero(medoids["clusters/representative"]).tolist() == [1, 3]
    assert represent(Evidence(heads), importance, "gradient").facts == {}


def test_heads_without_numbers_stay_alone_and_removed_ones_out():
    matrix = alike()
    matrix[2] = matrix[:, 2] = np.nan
    found = cluster(matrix, threshold=-0.5, present=np.array([True] * 5 + [False]))
    assert found.label[5] == -1
    assert not found.representative[5]
    assert 5 not in found.order
    assert cluster(matrix, threshold=0.5).label.tolist().count(cluster(matrix, threshold=0.5).label[2]) == 1
    assert found.linkage.shape == (4, 4)


@pytest.mark.parametrize("heads", [0, 1, 2])
def test_few_heads(heads):
    found = cluster(np.eye(heads))
    assert found.label.tolist() == list(range(heads))
    assert found.representative.all()


@settings(max_examples=30, deadline=None)
@given(heads=st.integers(2, 12), seed=st.integers(0, 99), threshold=st.floats(-0.5, 0.99))
def test_every_cluster_has_one_representative_and_order_of_heads_does_not_matter(heads, seed, threshold):
    matrix, turn = alike(heads, seed), np.random.default_rng(seed).permutation(heads)
    importance = np.arange(heads) + 1.0
    found = cluster(matrix, threshold=threshold, importance=importance)
    assert np.bincount(found.label[found.representative]).tolist() == [1] * len(set(found.label.tolist()))
    turned = cluster(matrix[np.ix_(turn, turn)], threshold=threshold, importance=importance[turn])
    assert set(turn[turned.representative]) == set(np.flatnonzero(found.representative))


def test_bad_input_is_named():
    with pytest.raises(BadInput, match="symmetric"):
        cluster(np.array([[1.0, 0.5], [0.1, 1.0]]))
    with pytest.raises(BadInput, match=r"threshold: got 1\.5"):
        cluster(np.eye(2), threshold=1.5)
    with pytest.raises(BadInput, match="clusters: got 3, expected 1 to 2"):
        cluster(np.eye(2), clusters=3)
    with pytest.raises(BadInput, match=r"importance: got \(3,\)"):
        cluster(np.eye(2), importance=np.ones(3))


def test_clear_groups_stay_together_and_noise_does_not():
    generator = np.random.default_rng(3)
    base = generator.normal(size=(3, 400))
    clear = np.concatenate([base + 0.05 * generator.normal(size=base.shape) for _ in range(2)])
    noise = generator.normal(size=(6, 400)) + 1.2 * generator.normal(size=400)

    def steady(rows, threshold):
        blocks = np.stack([part @ part.T for part in np.split(rows, 20, axis=1)])
        total = blocks.sum(0)
        norms = np.sqrt(total.diagonal())
        label = cluster(total / np.outer(norms, norms), threshold=threshold).label
        return stability(blocks, label, threshold=threshold, seed=1)

    assert steady(clear, 0.8)["mean"] == 1.0
    shaky = steady(noise, 0.55)
    assert shaky["low"] <= shaky["mean"] < 0.95
    assert shaky["blocks"] == 20


def test_too_few_texts_say_nothing_about_stability():
    found = stability(np.eye(3)[None], np.arange(3))
    assert np.isnan(found["mean"])
    assert found["blocks"] == 1
