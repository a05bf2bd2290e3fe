"""The cost after repair: equal to least squares for every set of heads."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.importance.collected import Collected
from headwise.prune.importance.gate_sums import GateSums
from headwise.prune.importance.moments import Moments
from headwise.prune.importance.parts import parts_of
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.reconstruction import Reconstruction, RepairCosts
from headwise.prune.importance.repair_cost import RepairCost, ridged
from headwise.prune.importance.resampled import PARTS, halves
from headwise.prune.importance.scores import removal_ranks
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.selection.blocks import Block
from headwise.prune.surgery import cut
from tests.prune.importance_scene import ROWS, Labels, batched, blocks, calibration, flat, made


def brute_cost(second, weight, slopes, gone, ridge):
    """Least-squares oracle: fit the removed contribution by the kept contexts, then weigh what is left."""
    h = ridged(second, ridge)
    root = np.linalg.cholesky(h)  # rows are a sample whose second moment is h
    kept = np.setdiff1d(np.arange(len(h)), gone)
    target = root[gone].T @ weight[:, gone].T
    if len(kept):
        fit = np.linalg.lstsq(root[kept].T, target, rcond=None)[0]
        target = target - root[kept].T @ fit
    return np.trace(slopes @ target.T @ target)


def small_site(seed=0, heads=4, width=3, out=5):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(heads * width, heads * width))
    sample = rng.normal(size=(200, heads * width)) @ mix
    slopes = rng.normal(size=(out, out))
    columns = {head: np.arange(head * width, (head + 1) * width) for head in range(heads)}
    return sample.T @ sample / 200, rng.normal(size=(out, heads * width)), slopes @ slopes.T, columns


@pytest.mark.parametrize("ridge", [1e-9, 1e-2])
def test_repair_cost_equals_least_squares_for_every_subset_in_any_order(ridge):
    second, weight, slopes, columns = small_site()
    for size in range(1, 5):
        for order in itertools.permutations(range(4), size):
            cost, total = RepairCost(second, weight.T @ slopes @ weight, columns, ridge), 0.0
            for head in order:
                total += cost.costs([(head,)])[0]
                cost.remove((head,))
            gone = np.concatenate([columns[head] for head in order])
            assert total == pytest.approx(brute_cost(second, weight, slopes, gone, ridge), rel=1e-6)
    together = RepairCost(second, weight.T @ slopes @ weight, columns, ridge).costs([(0, 2), (1, 2, 3)])
    for unit, price in zip([(0, 2), (1, 2, 3)], together, strict=True):
        gone = np.concatenate([columns[head] for head in unit])
        assert price == pytest.approx(brute_cost(second, weight, slopes, gone, ridge), rel=1e-6)


def test_the_greedy_path_equals_recomputation_at_every_step():
    scene = {str(i): small_site(i) for i in range(3)}
    sites = {n: Site(n, f"m{n}", f"m{n}.o", 4, 4, 3, kept=(0, 1, 2, 3)) for n in scene}

    class Costs:
        def start(self, block):
            second, weight, slopes, columns = scene[block.name]
            return RepairCost(second, weight.T @ slopes @ weight, columns)

    chosen = select(sites, Costs(), Budget(heads=9), keep=Keep(minimum_per_site=0))
    gone = {name: [] for name in scene}
    for step in chosen.steps:
        prices = {}
        for name, (second, weight, slopes, columns) in scene.items():
            for head in set(range(4)) - set(gone[name]):
                now, then = (
                    brute_cost(second, weight, slopes, np.concatenate([columns[h] for h in heads]), 1e-2)
                    if heads
                    else 0.0
                    for heads in (gone[name], [*gone[name], head])
                )
                prices[name, head] = then - now
        assert (step.block, step.heads[0]) == min(prices, key=prices.get)
        assert step.cost == pytest.approx(min(prices.values()), rel=1e-6)
        gone[step.block].append(step.heads[0])


def test_of_two_twin_heads_the_second_becomes_dear():
    model = made("bert")
    attention = model.bert.encoder.layer[0].attention.self
    for linear in (attention.query, attention.key, attention.value):
        linear.weight.data[8:16] = linear.weight.data[:8]
        linear.bias.data[8:16] = linear.bias.data[:8]
    model.bert.encoder.layer[0].attention.output.dense.weight.data[:, :16] *= 4
    score = Reconstruction(ridge=1e-9).score(calibration(model))
    cost = score.costs.start(blocks(model)["0"])
    free, other = cost.costs([(0,), (1,)])
    assert max(free, other) < 1e-6 * cost.costs([(2,)])[0]
    assert score["0"].argmin() in (0, 1)
    cost.remove((1,))
    assert cost.costs([(0,)])[0] > 1e3 * free
    assert set(score["0"].argsort()[[0, -1]]) == {0, 1}, "one twin goes first, the other is worth most"


@pytest.mark.parametrize(
    ("name", "weight"), [("bert", "gradient"), ("bert", "output"), ("llama", "gradient"), ("gpt2", "none")]
)
def test_reconstruction_cost_on_a_model_equals_the_formula(name, weight):
    """The moments, weights and slopes come from plain autograd, one text at a time."""
    model = made(name)
    site = find_sites(model)["1"]
    matrix, bias = output_weight(model, site).numpy(), output_bias(model, site)
    contexts, slopes = [], []
    module = model.get_submodule(site.output)
    handle = module.register_forward_hook(lambda m, args, out: (out.retain_grad(), kept.append((args[0], out)))[0])
    for batch in batched(1):
        kept = []
        Labels().losses(model, batch).sum().backward()
        contexts.append(kept[0][0][0].detach())
        slopes.append(kept[0][1].grad[0])
    handle.remove()
    c, g = torch.cat(contexts).numpy(), torch.cat(slopes).numpy()
    w = (g**2).sum(1) if weight == "gradient" else np.ones(len(c))
    scale = scale_by_hand(matrix, [context.numpy() for context in contexts], slopes, w) if weight != "none" else 1.0
    c = c - (w @ c / w.sum() if bias is not None else 0)
    second = (c * w[:, None]).T @ c / w.sum()
    inner = g.T @ g / len(ROWS) if weight != "none" else np.eye(32) / np.trace(matrix @ second @ matrix.T)
    score = Reconstruction(weight=weight, loss="labels", scaled=weight != "none").score(calibration(model))
    head = np.arange(8, 16)
    expected = scale * brute_cost(second, matrix, inner, head, 1e-2)
    assert score.costs.start(blocks(model)["1"]).costs([(1,)])[0] == pytest.approx(expected, rel=1e-6)


def test_grouped_heads_share_their_rank_and_selection_takes_whole_groups():
    model = made("llama")
    score = Reconstruction().score(calibration(model))
    assert score["0"][0] == score["0"][1] != score["0"][2]
    chosen = select(find_sites(model), score.costs, Budget(heads=2), score="reconstruction")
    assert list(chosen.remove.values()) in ([[0, 1]], [[2, 3]])


def test_shared_calls_are_one_block_with_one_cost():
    model = made("albert")
    score = Reconstruction().score(calibration(model))
    assert list(blocks(model)) == ["0"]
    assert (score["0"] == score["2"]).all()
    assert sorted(score["0"]) == [0, 3, 6, 9]


def test_moments_are_those_of_numpy():
    rng = np.random.default_rng(0)
    sample, weights = rng.normal(3, 1, size=(50, 4)), rng.random(50)
    moments = Moments.zeros(4)
    for part in (slice(0, 20), slice(20, 50)):
        moments.add(torch.tensor(sample[part]), torch.tensor(weights[part]))
    np.testing.assert_allclose(moments.matrix(True), np.cov(sample.T, aweights=weights, ddof=0), rtol=1e-10)
    np.testing.assert_allclose(moments.mean(), np.average(sample, axis=0, weights=weights), rtol=1e-12)


def test_repair_costs_need_no_second_measurement():
    model = made("bert")
    context = calibration(model)
    slopes = context.gradients(moments=True, slopes=True)
    costs = RepairCosts(model, context.moments("gradient"), slopes, 1e-2)
    block = blocks(model)["0"]
    first = costs.start(block)
    first.remove((0,))
    assert costs.start(block).costs([(0,)])[0] > 0, "a new start has lost nothing"


def costs_by_hand(model, gone):
    """What each head that is left costs, by least squares on contexts and slopes that plain autograd gives."""
    prices = {}
    for name, site in find_sites(model).items():
        matrix, seen, slopes = output_weight(model, site).numpy(), [], []
        handle = model.get_submodule(site.output).register_forward_hook(
            lambda m, args, out, found=seen: (out.retain_grad(), found.append((args[0], out)))[0]
        )
        for batch in batched(1):
            Labels().losses(model, batch).sum().backward()
            slopes.append(seen[-1][1].grad[0])
        handle.remove()
        left = [head for head in range(4) if head not in gone.get(name, [])]
        assert matrix.shape[1] == 8 * len(left)
        tokens = torch.cat([context[0].detach() for context, _ in seen]).numpy()
        second, inner = np.cov(tokens.T, ddof=0), torch.cat(slopes).numpy()
        scale = scale_by_hand(matrix, [context[0].detach().numpy() for context, _ in seen], slopes)
        for place, head in enumerate(left if len(left) > 1 else []):
            columns = np.arange(8 * place, 8 * place + 8)
            prices[name, head] = scale * brute_cost(second, matrix, inner.T @ inner / len(ROWS), columns, 1e-2)
    return prices


def scale_by_hand(matrix, contexts, slopes, weights=None):
    """Squared gradients at the gates of all heads, over the same by products of second moments, head by head."""
    heads = [np.arange(at, at + 8) for at in range(0, matrix.shape[1], 8)]
    tokens = np.concatenate(contexts)
    weights = np.ones(len(tokens)) if weights is None else weights
    second = (tokens * weights[:, None]).T @ tokens / weights.sum()
    inner = sum(slope.numpy().T @ slope.numpy() for slope in slopes)
    exact = sum(
        np.einsum("tc,oc,to->", context[:, head], matrix[:, head], slope.numpy()) ** 2
        for context, slope in zip(contexts, slopes, strict=True)
        for head in heads
    )
    products = sum(np.trace(inner @ matrix[:, head] @ second[np.ix_(head, head)] @ matrix[:, head].T) for head in heads)
    return exact / products


class _Scoring(torch.nn.Module):
    """Puts out scores of a shape, whatever it reads."""

    def __init__(self, *shape):
        super().__init__()
        self.shape = shape

    def forward(self, **_inputs):
        return SimpleNamespace(logits=torch.zeros(self.shape)) if self.shape else SimpleNamespace()


@pytest.mark.parametrize(("name", "tokens"), [("bert", False), ("llama", True)])
def test_costs_are_scaled_unless_scores_are_of_tokens(name, tokens):
    context = calibration(made(name))
    scores = [Reconstruction(scaled=how).score(context) for how in ("auto", not tokens, tokens)]
    unit = (0, 1) if tokens else (1,)
    price, same, another = (score.costs.start(blocks(context.model)["0"]).costs([unit])[0] for score in scores)
    assert price == same != another
    assert Reconstruction(loss="outputs").score(context).costs._scaled
    drawn = Reconstruction(loss="predictions").score(context).costs
    assert drawn._scaled is not tokens
    assert drawn.start(blocks(context.model)["0"]).costs([unit])[0] != price


@pytest.mark.parametrize(("name", "same", "other"), [("bert", "outputs", "labels"), ("llama", "labels", "outputs")])
def test_scores_of_whole_texts_weigh_by_the_outputs_those_of_tokens_by_the_tasks_loss(name, same, other):
    context = calibration(made(name))
    found = [Reconstruction(loss=loss).score(context).costs for loss in ("auto", same, other)]
    price, told, untold = (costs.start(blocks(context.model)["0"]).costs([(0, 1)])[0] for costs in found)
    assert price == told != untold
    if same == "outputs":
        unlabelled = dataclasses.replace(context, task=None, _passes={})
        assert Reconstruction().score(unlabelled).costs.start(blocks(context.model)["0"]).costs([(0, 1)])[0] == price


def test_nothing_to_scale_by_is_refused():
    with pytest.raises(ValueError, match="weight: none does without"):
        Reconstruction(weight="none", scaled=True)
    assert Reconstruction(weight="none").scaled == "auto"


def test_costs_are_scaled_to_the_gradients_at_the_gates():
    """A text whose tokens all move the loss alike: by tokens its cost counts once, at the gates tokens squared."""
    site = Site("0", "a", "a.o", 1, 1, 2, kept=(0,))
    tokens, slope = torch.ones(1, 5, 2, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    moments = Moments.zeros(2)
    moments.add(tokens[0])
    gates = GateSums.zeros(1, 2)
    gate = tokens.sum((1, 2)).reshape(1, 1)
    gates.add(torch.tensor([0]), gate, gate, torch.ones(1, 2), torch.tensor([5]))
    model = torch.nn.ModuleDict({"a": torch.nn.ModuleDict({"o": torch.nn.Linear(2, 1)})}).double()
    torch.nn.init.ones_(model["a"]["o"].weight)
    contexts = Collected(fit={"0": moments}, held={"0": Moments.zeros(2)})
    slopes = Collected(texts=np.eye(PARTS)[0], slopes={"0": slope.T @ slope}, gates={"0": gates})
    plain, scaled = (RepairCosts(model, contexts, slopes, 1e-2, scaled=yes) for yes in (False, True))
    block = Block((site,))
    # The Kronecker product says 5 tokens times (1 + 1)^2; the gates say (5 * 2)^2.
    assert scaled._scale(block, moments, np.full((2, 2), 5.0)) == pytest.approx(100 / 20)
    np.testing.assert_allclose(scaled._measure(block)[1], 5 * plain._measure(block)[1])


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bert", {}),
        ("bert", {"weight": "gradient"}),
        ("llama", {"weight": "none"}),
        ("albert", {"loss": "predictions"}),
    ],
)
def test_costs_on_half_of_the_texts_are_those_that_half_gives(name, how):
    model, score = made(name), Reconstruction(**how)
    parts = parts_of([text for batch in batched(1) for text in batch.texts]).numpy()
    found = score.score(calibration(model)).resampled
    part = next(iter(blocks(model).values()))
    units = [(0, 1), (2, 3)] if name == "llama" else [(0,), (2,), (3,)]
    for half in halves()[::5]:
        rows = [row for row, at in zip(ROWS, parts, strict=True) if half[at]]
        assert 0 < len(rows) < len(ROWS)
        again, oracle = (
            found.costs(half).start(part),
            score.score(calibration(model, batched(rows=rows))).costs.start(part),
        )
        for costs in (again, oracle):
            costs.remove(units[0])
        np.testing.assert_allclose(again.costs(units[1:]), oracle.costs(units[1:]), rtol=1e-5)


def test_of_wide_models_and_in_rounds_it_is_said_why_nothing_is_chosen_again(monkeypatch):
    context = calibration(made("bert"))
    assert "every round" in Reconstruction(recollect=8).score(context).resampled.unchosen
    monkeypatch.setattr("headwise.prune.importance.grouped.MOST", 1000)
    wide = Reconstruction().score(calibration(made("bert"))).resampled
    assert wide.costs is None
    assert "more than 512 MiB" in wide.unchosen


def test_in_rounds_every_head_goes_that_costs_least_in_the_repaired_and_cut_model():
    model = made("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    score = Reconstruction(recollect=1, loss="labels", scaled=True).score(calibration(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert sorted(flat(score)) == list(range(1, 9))
    order = sorted((score[name][head], name, head) for name in score for head in range(4))
    gone = {}
    for _, name, head in order[:4]:
        prices = costs_by_hand(model, gone)
        assert (name, head) == min(prices, key=prices.get)
        Reconstruct(correct="none", values="keep").repair(calibration(model), {name: [head]})
        cut(model, {name: [head]})
        gone.setdefault(name, []).append(head)
    one_shot = flat(Reconstruction().score(calibration(made("bert"))))
    assert (flat(score).argsort() != one_shot.argsort()).any(), "looking again changes the order"


def test_a_round_of_all_heads_is_one_shot_and_groups_go_whole():
    for name in ("llama", "albert"):
        ranks = removal_ranks(find_sites(made(name)), Reconstruction().score(calibration(made(name))).costs)
        found = Reconstruction(recollect=100).score(calibration(made(name)))
        assert all((found[site] == ranks[site] + 1).all() for site in ranks)
    score = Reconstruction(recollect=2).score(calibration(made("llama")))
    assert all(score[site][0] == score[site][1] != score[site][2] for site in score)
    with pytest.raises(BadInput, match="no piece has 1 heads or fewer"):
        Reconstruction(recollect=1).score(calibration(made("llama")))


def test_rounds_end_where_every_block_is_down_to_one_group():
    """Eight heads of two groups: two rounds take a group of each block, and what is left is more than a head a site."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, head_dim=8,
            intermediate_size=40, vocab_size=50, initializer_range=0.3,
        )
    ).eval()  # fmt: skip
    score, seen = Reconstruction(recollect=4, weight="none"), []
    context = calibration(model)
    model.register_forward_pre_hook(lambda *_: seen.append(1))
    found = score.score(context)
    assert sorted({value for name in found for value in found[name]}) == [1, 5, 9, 13]
    passes = Passes(find_sites(model), texts=12, batches=3, scored=False)
    score.foretell(passes)
    # The copies keep the hook of the model that they are made of.
    assert len(seen) / 3 == passes.forward == 3
