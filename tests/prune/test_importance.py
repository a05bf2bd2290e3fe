"""All scores: what every one of them keeps to, and those that read weights, contexts or the evidence."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from scipy.stats import rankdata

from headwise.analysis.capture import capture
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import contexts
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import by_part, inferred
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.similarity import Pearson
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.sites.projections import output_weight
from headwise.analysis.statistics import Statistics
from headwise.prune.deciding import decide
from headwise.prune.deciding.stability import chosen_again, stability
from headwise.prune.importance import SCORES, Calibration, Scores
from headwise.prune.importance.fisher import Fisher
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.parts import parts_of
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.reconstruction import Reconstruction
from headwise.prune.importance.redundancy import Redundancy, clusters_lost
from headwise.prune.importance.resampled import PARTS, Resampled
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget, select
from tests.prune.importance_scene import (
    ROWS,
    Labels,
    batched,
    blocks,
    calibration,
    evidence_of,
    flat,
    made,
)


def analysed(model, batches):
    """Evidence of what scores read, from these very batches."""
    sites = find_sites(model)
    reducers = [Statistics(sites), Pearson(sites)]
    capture(model, batches, reducers, sites=sites)
    measured = reducers[0].result() | reducers[1].result()
    firm = measured["statistics/confidence"]
    return evidence_of(model, **measured, **{"roles/self/low": firm - firm.mean()})


#: Ways of scores that their defaults leave out. What is trained batch by batch, or summed batch by batch, is not here.
VARIANTS = {
    "per-token": Gradient(variant="per-token"),
    "site": Gradient(normalize="site"),
    "block": Fisher(form="block"),
    "predictions": Fisher(loss="predictions"),
    "outputs": SCORES["taylor2"](loss="outputs"),
    "diverging": SCORES["ablation"](loss="predictions"),
    "apart": SCORES["ablation"](loss="outputs"),
    "length": SCORES["activation"](mean="length"),
    "norm": Redundancy(matters="norm"),
    "standard": SCORES["variance"](normalize="standard"),
    "weighted": Reconstruction(weight="gradient"),
    "none": Reconstruction(weight="none"),
}
EVERY = {kind: score() for kind, score in SCORES.items() if kind != "gates"} | VARIANTS


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_no_score_depends_on_the_batches_or_on_padding(name):
    model = made(name)
    views = [batched(5), batched(4, width=11), batched(3, rows=ROWS[::-1]), batched(1)]
    views += [batched(4, left=True)] if name == "llama" else []
    seen = [calibration(model, batches, evidence=analysed(model, batches)) for batches in views]
    # A pass per head and batch: two views say as much as five.
    few = [calibration(model, batches) for batches in (batched(12), batched(7, width=11))]
    parts = list(blocks(model).values())
    for way, score in EVERY.items():
        found = [score.score(context) for context in (few if score.kind == "ablation" else seen)]
        for other in found[1:]:
            np.testing.assert_allclose(flat(other), flat(found[0]), rtol=1e-6, atol=1e-12, err_msg=way)
            prices = [[f.costs.start(part).costs([(1,)]) for part in parts] for f in (found[0], other)]
            np.testing.assert_allclose(prices[1], prices[0], rtol=1e-6, atol=1e-12, err_msg=way)


def test_trained_gates_do_not_depend_on_padding():
    model = made("bert")
    found = [SCORES["gates"](steps=6).score(calibration(model, batched(4, width=width))) for width in (0, 11)]
    np.testing.assert_allclose(flat(found[0]), flat(found[1]), rtol=1e-6)


def test_scores_on_texts_drawn_again_are_those_of_the_drawn_texts():
    model = made("bert")
    parts = parts_of([text for batch in batched(1) for text in batch.texts]).numpy()
    drawn = np.random.default_rng(3).integers(0, 3, PARTS)
    again = [row for row, part in zip(ROWS, parts, strict=True) for _ in range(drawn[part])]
    assert 0 < len(again) != len(ROWS)
    whole, sample = batched(12), batched(12, rows=again)
    context = calibration(model, whole, evidence=analysed(model, whole))
    oracle = calibration(model, sample, evidence=analysed(model, sample))
    # Of redundancy, similarity stays as measured on all texts.
    similar = {name: found for name, found in context.evidence.arrays.items() if name.startswith("similarity")}
    oracle.evidence.arrays.update(similar)
    silent = set()
    for way, score in EVERY.items():
        found = score.score(context).resampled
        if found.anew is None:
            silent.add(way)
        elif found.instead is not None:
            expected = score.score(oracle).resampled.instead
            np.testing.assert_allclose(flat(found.anew(drawn)), flat(expected), rtol=1e-6, err_msg=way)
        else:
            np.testing.assert_allclose(flat(found.anew(drawn)), flat(score.score(oracle)), rtol=1e-6, err_msg=way)
    assert silent == {"roles"}


def test_batches_are_drawn_again_where_only_their_sums_are_known():
    model, score = made("bert"), Gradient(variant="per-batch")
    batches = batched(3)
    found = score.score(calibration(model, batches)).resampled
    assert found.how == "whole batches drawn again"
    firsts = parts_of([batch.texts[0] for batch in batches]).numpy()
    assert len(set(firsts)) == len(batches) == found.texts.sum()
    drawn = np.zeros(PARTS)
    drawn[firsts] = 2, 0, 1, 3
    again = [batch for batch, times in zip(batches, drawn[firsts].astype(int), strict=True) for _ in range(times)]
    one, other = flat(found.anew(drawn)), flat(score.score(calibration(model, again)))
    np.testing.assert_allclose(one / one.sum(), other / other.sum(), rtol=1e-9)


def test_stability_says_how_alike_the_ranks_of_other_texts_are():
    model = made("bert")
    context = calibration(model, evidence=analysed(model, batched()))
    for kind, fixed in (("magnitude", True), ("random", True), ("fisher", False)):
        scores = SCORES[kind]().score(context)
        found = stability(kind, scores, scores.resampled, seed=0, resamples=40)
        assert found["schema"] == 1
        assert found["score"] == kind
        assert (found["tau"] == 1.0 and found["resamples"] == 0) == fixed
        assert found["low"] <= found["tau"] <= found["high"]
    assert found == stability(kind, scores, scores.resampled, seed=0, resamples=40)
    assert found != stability(kind, scores, scores.resampled, seed=1, resamples=40)
    values = {"0": np.arange(40.0)}
    noise = np.random.default_rng(0)
    unsure = Resampled("noise", np.ones(PARTS), lambda _: {"0": noise.random(40)})
    chance = stability("noise", values, unsure, seed=0)
    assert abs(chance["tau"]) < 0.05
    assert chance["low"] < -0.1 < 0.1 < chance["high"]
    swapped = Resampled("one pair", np.ones(PARTS), lambda _: {"0": np.array([1.0, 0.0, 2.0, np.nan])})
    assert stability("pair", {"0": np.array([0.0, 1.0, 2.0, np.nan])}, swapped, seed=0)["tau"] == pytest.approx(1 / 3)
    for unknown in (None, Resampled("not from sums"), Resampled("one text", np.eye(PARTS)[0], lambda _: values)):
        told = stability("unknown", values, unknown, seed=0)
        assert (told["tau"], told["resamples"]) == (None, 0)
        assert told["how"]


def test_one_head_has_no_order_and_nobody_is_warned_of_it(recwarn):
    alone = Resampled("one head", np.ones(PARTS), lambda _: {"0": np.ones(1)})
    assert stability("alone", {"0": np.ones(1)}, alone, seed=0)["tau"] is None
    assert not recwarn.list


def test_what_is_chosen_on_halves_of_the_texts_is_chosen_by_hand():
    """Four heads, of which two go; on two halves in six another one would have gone."""
    site = Site("0", "attn", "attn.o", 5, 5, 8, kept=(0, 1, 2, 3))

    def anew(weights):
        first = weights[0] == 2 and weights[1] == 2
        last = weights[2] == 2 and weights[3] == 2
        return {"0": np.array([0.0, 3.0 if first or last else 1.0, 2.0, 9.0, np.nan])}

    def choose(costs):
        return {**select({"0": site}, costs, Budget(heads=3)).remove}

    values = {"0": np.array([0.0, 1.0, 2.0, 9.0, np.nan])}
    found = chosen_again(Scores("made", values, resampled=Resampled("", np.ones(PARTS), anew)), {"0": site}, choose, 4)
    assert found["heads"] == {"0": {"0": 6, "1": 4, "2": 2}}
    assert (found["removed"], found["always"], found["times"], found["chance"]) == (2, 1, 6, 0.5)
    assert (found["share"], found["least"], found["most"]) == (pytest.approx(5 / 6), 0.5, 1.0)
    few = np.where(np.arange(PARTS) % 4 == 3, 0.0, 1.0)
    silent = (None, Resampled("learned", few), Resampled("x", few, anew), Resampled("x", few, anew, unchosen="dear"))
    for way, why in zip(silent, ("does not say", "learned", "too few texts", "dear"), strict=True):
        told = chosen_again(Scores("made", values, resampled=way), {"0": site}, choose, 4)
        assert (told["times"], told["share"]) == (0, None)
        assert why in told["how"]


def test_one_pass_serves_gradient_fisher_and_reconstruction():
    model, calls = made("bert"), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    context = calibration(model)
    for score in (Reconstruction(weight="gradient", loss="labels"), Gradient(), Fisher()):
        score.score(context)
    assert len(calls) == len(batched())


def test_scores_that_need_a_task_or_texts_say_so():
    model = made("bert")
    for score in (Gradient(), SCORES["ablation"]()):
        with pytest.raises(BadInput, match="needs a task"):
            score.score(Calibration(model, find_sites(model), batched()))
    with pytest.raises(BadInput, match="no texts"):
        Gradient().score(calibration(model, []))


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_ablation_equals_zeroed_columns(name):
    model = made(name)
    found = SCORES["ablation"]().score(calibration(model))

    def loss():
        with torch.no_grad():
            return torch.cat([Labels().losses(model, batch) for batch in batched(12)]).mean().item()

    dense = loss()
    for block in blocks(model).values():
        site = block.sites[0]
        weight = output_weight(model, site)
        for head in range(site.heads):
            columns = slice(head * site.head_dim, (head + 1) * site.head_dim)
            saved = weight[:, columns].clone()
            weight[:, columns] = 0
            rise = loss() - dense
            weight[:, columns] = saved
            assert sum(found[call.name][head] for call in block.sites) == pytest.approx(rise, abs=1e-9)


def test_magnitude_is_the_norm_of_the_columns():
    for name in ("bert", "gpt2"):
        model = made(name)
        found = SCORES["magnitude"]().score(calibration(model))
        projection = (
            model.bert.encoder.layer[1].attention.output.dense if name == "bert" else model.transformer.h[1].attn.c_proj
        )
        weight = projection.weight if name == "bert" else projection.weight.T
        assert found["1"][2] == pytest.approx(weight[:, 16:24].norm().item())


def test_scores_of_a_cut_site_leave_gone_heads_out():
    sites = {"0": Site("0", "m", "m.o", 4, 4, 8, kept=(0, 3))}
    values = SCORES["random"]().score(Calibration(None, sites, None, seed=1))["0"]
    dense = SCORES["random"]().score(
        Calibration(None, {"0": Site("0", "m", "m.o", 4, 4, 8, kept=(0, 1, 2, 3))}, None, seed=1)
    )["0"]
    assert np.isnan(values).tolist() == [False, True, True, False]
    assert values[3] == dense[3]


def test_of_each_cluster_the_head_that_matters_most_stays():
    similarity = np.eye(5)
    for a, b, r in [(0, 1, 0.95), (0, 2, 0.9), (1, 2, 0.92), (3, 4, 0.8)]:
        similarity[a, b] = similarity[b, a] = r
    distances, rivals = clusters_lost(similarity, np.array([1.0, 3.0, 2.0, 5.0, 4.0]))
    assert np.argsort(distances).tolist() == [0, 2, 4, 1, 3]
    assert rivals[[0, 2, 4]].tolist() == [1, 1, 3]
    # Any cut of the dendrogram keeps the most important member of each cluster.
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    rng = np.random.default_rng(0)
    noise = np.corrcoef(rng.normal(size=(12, 20)) + rng.normal(size=(1, 20)))
    weight = rng.random(12)
    lost, _ = clusters_lost(noise, weight)
    tree = linkage(squareform(np.clip(1 - noise, 0, None), checks=False), "average")
    for number in range(1, 12):
        label = fcluster(tree, number, "maxclust")
        keep = {max(np.flatnonzero(label == one), key=lambda head: weight[head]) for one in set(label)}
        assert set(np.argsort(lost)[12 - len(keep) :]) == keep


def test_redundancy_reads_the_evidence_and_names_the_rival():
    model = made("bert")
    similarity = np.eye(8)
    similarity[1, 6] = similarity[6, 1] = 0.97
    norms = np.arange(1.0, 9.0)
    arrays = {"similarity/pearson": similarity, "statistics/context_norm": norms}
    found = Redundancy(matters="norm").score(calibration(model, evidence=evidence_of(model, **arrays)))
    assert flat(found).argmin() == 1
    assert found.notes["0"][1] == "nearest head that matters more: 1.2 (r = 0.97)"
    gradient = Redundancy().score(calibration(model, evidence=evidence_of(model, **arrays)))
    importance = flat(Gradient().score(calibration(model)))
    assert flat(gradient).argmin() == min((1, 6), key=lambda head: importance[head])
    with pytest.raises(BadInput, match="lacks similarity 'cosine'; it has pearson"):
        Redundancy(measure="cosine").score(calibration(model, evidence=evidence_of(model, **arrays)))
    with pytest.raises(BadInput, match="lacks similarity"):
        Redundancy().score(calibration(model))


def test_every_score_is_a_frozen_recipe_part_and_gives_float64_per_head():
    model = made("bert")
    arrays = {
        "similarity/pearson": np.eye(8),
        "statistics/confidence": np.linspace(0, 1, 8),
        "roles/previous/low": np.linspace(-1, 1, 8),
    }
    for kind, score in SCORES.items():
        method = TypeAdapter(score).validate_python({"kind": kind, **({"steps": 2} if kind == "gates" else {})})
        found = method.score(calibration(model, evidence=evidence_of(model, **arrays)))
        assert found.kind == kind
        assert {name: values.shape for name, values in found.items()} == {"0": (4,), "1": (4,)}
        assert flat(found).dtype == np.float64
        assert np.isfinite(flat(found)).all()
        method.foretell(Passes(find_sites(model), texts=12, batches=3, scored=True))
        select(find_sites(model), found.costs, Budget(heads=3), score=kind, notes=found.notes)
        with pytest.raises(ValueError, match="frozen"):
            method.kind = "other"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_activation_and_variance_equal_numpy(name):
    model = made(name)
    sites, rows = find_sites(model), {}
    for batch in batched():
        with torch.no_grad(), contexts(model, sites) as seen:
            model(**batch.inputs)
        for site, found in seen.items():
            rows.setdefault(site, []).append(found[0][batch.tokens[""].valid])
    context = calibration(model)
    size, spread_ = (SCORES[kind]().score(context) for kind in ("activation", "variance"))
    length = SCORES["activation"](mean="length").score(context)
    for site, parts in rows.items():
        seen = torch.cat(parts).numpy()
        weight = output_weight(model, sites[site]).numpy()
        heads = seen.reshape(len(seen), sites[site].heads, -1)
        np.testing.assert_allclose(size[site], np.sqrt((heads**2).sum(-1).mean(0)), rtol=1e-6)
        np.testing.assert_allclose(length[site], np.linalg.norm(heads, axis=-1).mean(0), rtol=1e-6)
        columns = seen.var(0) * (weight**2).sum(0)
        np.testing.assert_allclose(spread_[site], columns.reshape(sites[site].heads, -1).mean(1), rtol=1e-6)


def test_standard_columns_are_those_of_their_site():
    model = made("bert")
    plain, standard = (SCORES["variance"](normalize=how).score(calibration(model)) for how in ("none", "standard"))
    for site in plain:
        assert list(np.argsort(plain[site])) == list(np.argsort(standard[site]))
        assert abs(standard[site].mean()) < 1e-9


def test_confidence_and_roles_are_read_from_the_evidence():
    model = made("bert")
    low = np.array([0.1, -0.2, 0.5, 0, 0, 0, 0, 0])
    arrays = {"statistics/confidence": np.arange(8.0), "roles/next/low": low, "roles/self/low": -low}
    context = calibration(model, evidence=evidence_of(model, **arrays))
    np.testing.assert_allclose(flat(SCORES["confidence"]().score(context)), np.arange(8.0))
    found = SCORES["roles"]().score(context)
    np.testing.assert_allclose(flat(found), np.abs(low))
    assert found.notes["0"] == {0: "surely next", 1: "surely self", 2: "surely next"}
    np.testing.assert_allclose(flat(SCORES["roles"](roles=("next",)).score(context)), np.maximum(low, 0))
    more = {"roles/dormant/low": np.full(8, 0.9), "roles/own/low": np.full(8, 0.3)}
    found = SCORES["roles"]().score(calibration(model, evidence=evidence_of(model, **arrays, **more)))
    np.testing.assert_allclose(
        flat(found), np.maximum(np.abs(low), 0.3), err_msg="a user's own role counts, doing nothing not"
    )
    context = calibration(model, evidence=evidence_of(model, **arrays, **more))
    np.testing.assert_allclose(
        flat(SCORES["roles"](roles=("dormant",)).score(context)), 0.9, err_msg="unless asked for"
    )
    with pytest.raises(BadInput, match="no role 'nose'"):
        SCORES["roles"](roles=("nose",)).score(context)
    with pytest.raises(BadInput, match="no statistics/confidence"):
        SCORES["confidence"]().score(calibration(model))


def test_roles_on_texts_drawn_again_come_from_sums_by_part_of_the_texts():
    model = made("gpt2")
    sites, rows = find_sites(model), [np.random.default_rng(i).integers(1, 50, size=12).tolist() for i in range(150)]
    masses = RelationMass(sites, {role: ROLES[role] for role in ("previous", "self")})
    capture(model, batched(50, rows=rows), [masses], sites=sites)
    arrays = {"roles/coreference/low": np.linspace(-0.3, 0.1, 8)}
    for role in masses.roles:
        arrays[f"roles/{role}/low"] = inferred(masses.measured(role))["low"]
        arrays[f"parts/role/{role}"] = by_part(masses.measured(role))
    score = SCORES["roles"]().score(calibration(model, evidence=evidence_of(model, **arrays)))
    way = score.resampled
    assert way.how.endswith("coreference as measured on texts of their own")
    assert way.texts.sum() > 0
    # Bootstrap over 256 cells and linear spread over 64 parts are two estimates of one bound.
    np.testing.assert_allclose(flat(way.instead), flat(score), atol=0.005)
    assert np.ptp(flat(score)) > 0.05
    drawn = np.random.default_rng(1).integers(0, 3, PARTS)
    expected = arrays["roles/coreference/low"].clip(0)
    for role in masses.roles:
        e, n = np.repeat(arrays[f"parts/role/{role}"].astype(float), drawn, axis=1).transpose(2, 0, 1)
        ratio = e.sum(1) / n.sum(1)
        count = (n[:, :, None] > 0).sum(1)[:, 0]
        distinct = (arrays[f"parts/role/{role}"][..., 1][:, drawn > 0] > 0).sum(1)
        assert (distinct < count).all()
        spread_ = np.sqrt(np.square(e - ratio[:, None] * n).sum(1) * distinct / (distinct - 1)) / n.sum(1)
        expected = np.maximum(expected, ratio - 1.96 * spread_)
    np.testing.assert_allclose(flat(way.anew(drawn)), expected, rtol=1e-6)
    found = stability("roles", score, way, seed=0, resamples=40)
    assert 0 < found["low"] <= found["tau"] <= 1


def test_combined_hands_its_loss_to_all_parts_that_look_at_one():
    model = made("gpt2")
    kinds = [
        kind for kind, score in SCORES.items() if "loss" in score.model_fields and kind not in ("combined", "gates")
    ]
    assert {"ablation", "fisher", "gradient", "reconstruction", "redundancy", "taylor2"} == set(kinds)
    evidence = analysed(model, batched())
    # No task: whatever looked at labels would say so.
    context = Calibration(model, find_sites(model), batched(12), evidence=evidence)
    scores = dict.fromkeys([*kinds, "magnitude"], 1.0)
    found = SCORES["combined"](scores=scores, loss="predictions").score(context)
    parts = [SCORES[kind](loss="predictions").score(context) for kind in kinds] + [SCORES["magnitude"]().score(context)]
    by_hand = np.mean([rankdata(flat(part)) - 1 for part in parts], axis=0) / (len(flat(found)) - 1)
    np.testing.assert_allclose(flat(found), by_hand)
    with pytest.raises(BadInput, match="choose a task, loss: predictions"):
        SCORES["combined"]().score(context)
    with pytest.raises(ValueError, match="matters: norm looks at none"):
        Redundancy(matters="norm", loss="outputs")


def test_combined_is_the_weighted_mean_of_ranks():
    model = made("bert")
    context = calibration(model)
    parts = {kind: flat(SCORES[kind]().score(context)) for kind in ("gradient", "magnitude")}
    ranks = {kind: values.argsort().argsort() / 7 for kind, values in parts.items()}
    found = SCORES["combined"](scores={"gradient": 3.0, "magnitude": 1.0}).score(context)
    np.testing.assert_allclose(flat(found), (3 * ranks["gradient"] + ranks["magnitude"]) / 4)
    alone = SCORES["combined"](scores={"magnitude": 1.0}).score(context)
    assert list(flat(alone).argsort()) == list(parts["magnitude"].argsort())
    with pytest.raises(ValueError, match="none of magnitude, random looks at a loss"):
        SCORES["combined"](scores={"magnitude": 1.0, "random": 1.0}, loss="predictions")
    for wrong in ({}, {"nose": 1.0}, {"combined": 1.0}, {"gradient": 0.0}):
        with pytest.raises(ValueError, match="scores"):
            SCORES["combined"](scores=wrong)


def test_heads_that_a_score_does_not_tell_apart_are_said(caplog):
    model = made("bert")
    sites = find_sites(model)
    values = {"0": np.array([0.0, 0.0, 0.5, 0.0]), "1": np.array([0.0, 0.9, 0.8, 0.7])}
    facts = {"model": {"id": "tiny"}, "versions": {}, "texts": {"calibration": {}}}
    known = Evidence([(name, head) for name in sites for head in range(4)])

    def planned(heads):
        recipe = Recipe.from_text(f"schema: 1\nscore: {{kind: roles}}\nremove: {{heads: {heads}}}")
        caplog.clear()
        return decide(recipe, calibration(model), known, facts, scores=Scores("roles", values))

    plan = planned(2)
    assert plan.remove == {"0": [0, 1]}
    assert plan.made_with["stability"]["even"] == 2
    assert plan.reasons["1"][0].endswith("; the last head removed cost just as much")
    assert "score roles: 2 of the heads that stay score exactly as one that goes" in caplog.text
    assert "even" not in planned(4).made_with["stability"]
    assert "score exactly" not in caplog.text
