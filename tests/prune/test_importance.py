import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from headwise.analysis.batching import Batch, Tokens
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import contexts, gated
from headwise.analysis.projections import output_bias, output_weight
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.texts import Text
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.importance.fisher import Fisher
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.moments import Moments
from headwise.prune.importance.reconstruction import Reconstruction, RepairCosts
from headwise.prune.importance.redundancy import Redundancy, clusters_lost
from headwise.prune.importance.repair_cost import RepairCost, ridged
from headwise.prune.selection import Budget, Keep, select


def bert(**more):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
    config = BertConfig(vocab_size=50, num_labels=3, initializer_range=0.4, **{**sizes, **more})
    return BertForSequenceClassification(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50, initializer_range=0.3))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=40, vocab_size=50, initializer_range=0.3,
        )
    )  # fmt: skip


def albert():
    from transformers import AlbertConfig, AlbertForSequenceClassification

    return AlbertForSequenceClassification(
        AlbertConfig(
            hidden_size=32, embedding_size=16, num_attention_heads=4, num_hidden_layers=3,
            intermediate_size=40,
            vocab_size=50, num_labels=3, initializer_range=0.3,
        )
    )  # fmt: skip


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "albert": albert}


def made(name, dtype=torch.float64):
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.2)
    return model.eval()


ROWS = [np.random.default_rng(i).integers(1, 50, size=3 + i % 5).tolist() for i in range(12)]


def batched(size=4, left=False, width=0, rows=ROWS):
    found = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        longest = max(width, *map(len, part))
        ids, valid = torch.zeros(len(part), longest, dtype=torch.long), torch.zeros(len(part), longest).bool()
        for place, row in enumerate(part):
            at = slice(longest - len(row), None) if left else slice(0, len(row))
            ids[place, at], valid[place, at] = torch.tensor(row), True
        inputs = {"input_ids": ids, "attention_mask": valid.long()}
        if left:
            inputs["position_ids"] = (valid.long().cumsum(-1) - 1).clamp(min=0)
        empty = torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(" ".join(map(str, row)), label=sum(row) % 3) for row in part]
        found.append(Batch(inputs, texts, {"": tokens}))
    return found


class Labels:
    """Cross entropy of the label, or of the next token."""

    def losses(self, model, batch):
        logits = model(**batch.inputs).logits
        if logits.ndim == 2:
            target = torch.tensor([text.label for text in batch.texts])
            return nn.functional.cross_entropy(logits, target, reduction="none")
        valid = batch.tokens[""].valid
        real = valid[:, 1:] & valid[:, :-1]
        each = nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch.inputs["input_ids"][:, 1:], reduction="none"
        )
        return (each * real).sum(1) / real.sum(1).clamp(min=1)


def calibration(model, batches=None, **more):
    return Calibration(model, find_sites(model), batched() if batches is None else batches, Labels(), **more)


def gate_gradients(model):
    """Oracle: the gradient of every text's loss at every gate, one text and one gate tensor at a time."""
    rows = []
    for batch in batched(1):
        gates = {n: torch.ones(s.heads, dtype=torch.float64, requires_grad=True) for n, s in find_sites(model).items()}
        with gated(model, gates=gates):
            Labels().losses(model, batch).sum().backward()
        rows.append(torch.cat([gate.grad for gate in gates.values()]).numpy())
    return np.array(rows)


def flat(scores):
    return np.concatenate([scores[name] for name in scores])


@pytest.mark.parametrize("name", MODELS)
def test_gradient_and_fisher_equal_autograd_through_the_gates(name):
    model = made(name)
    oracle = gate_gradients(model)
    context = calibration(model)
    np.testing.assert_allclose(flat(Gradient().score(context)), np.abs(oracle).mean(0), rtol=1e-9)
    np.testing.assert_allclose(flat(Fisher().score(context)), (oracle**2).mean(0), rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_equals_the_finite_difference(name):
    model = made(name)
    # Llama's norms compute in float32 whatever the model's type: a smaller step would drown in rounding.
    step, rows = 3e-3 if name == "llama" else 1e-4, []
    for site in find_sites(model).values():
        for head in range(site.heads):
            losses = []
            for sign in (1, -1):
                gate = torch.ones(site.heads, dtype=torch.float64)
                gate[head] += sign * step
                with torch.no_grad(), gated(model, gates={site.name: gate}):
                    losses.append(torch.cat([Labels().losses(model, batch) for batch in batched()]))
            rows.append(((losses[0] - losses[1]) / (2 * step)).abs().mean().item())
    np.testing.assert_allclose(flat(Gradient().score(calibration(model))), rows, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("kind", ["gradient", "gradient-token", "fisher", "reconstruction", "ablation"])
def test_scores_depend_neither_on_the_batches_nor_on_padding(name, kind):
    score = {"gradient-token": Gradient(variant="per-token"), "gradient": Gradient()}.get(kind)
    score = score or SCORES[kind]()
    model = made(name)
    views = [batched(5), batched(4, width=11), batched(3, rows=ROWS[::-1]), batched(1)]
    views = views[:2] if kind == "ablation" else views
    if name == "llama":
        views.append(batched(4, left=True))
    found = [score.score(calibration(model, batches)) for batches in views]
    for other in found[1:]:
        np.testing.assert_allclose(flat(other), flat(found[0]), rtol=1e-7, atol=1e-12)
    costs = [[f.costs.start(b).costs([(1,)]) for b in blocks(model).values()] for f in found]
    np.testing.assert_allclose(costs[1:], [costs[0]] * (len(views) - 1), rtol=1e-7, atol=1e-12)


def blocks(model):
    from headwise.prune.selection import blocks_of

    return blocks_of(find_sites(model))


def test_per_batch_is_what_its_name_says():
    model = made("bert")
    oracle = gate_gradients(model)
    expected = sum(np.abs(oracle[start : start + 4].sum(0)) for start in range(0, len(ROWS), 4)) / len(ROWS)
    found = Gradient(variant="per-batch").score(calibration(model, batched(4)))
    np.testing.assert_allclose(flat(found), expected, rtol=1e-9)


def test_normalised_scores_have_length_one_in_every_site():
    found = Gradient(normalize="site").score(calibration(made("bert")))
    assert [np.linalg.norm(found[name]) for name in found] == pytest.approx([1.0, 1.0])


def test_one_pass_serves_gradient_fisher_and_reconstruction():
    model, calls = made("bert"), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    context = calibration(model)
    for score in (Reconstruction(weight="gradient"), Gradient(), Fisher()):
        score.score(context)
    assert len(calls) == len(batched())


def test_looking_changes_nothing_also_when_the_loss_fails():
    model = made("bert")
    model.train()
    model.bert.encoder.layer[0].eval()
    model.classifier.weight.requires_grad_(False)

    def state():
        flags = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        return flags, [(p.requires_grad, p.grad) for p in model.parameters()]

    before = state()
    Reconstruction().score(calibration(model))
    assert state() == before
    broken = SimpleNamespace(losses=lambda model, batch: model(**batch.inputs).logits[:, 0] * float("nan"))
    with pytest.raises(BadInput, match="not finite for the text"):
        Gradient().score(Calibration(model, find_sites(model), batched(), broken))
    assert state() == before


class Halves:
    """A loss over two calls of the model, one per half of the text, each with padding of its own."""

    def losses(self, model, batch):
        halves = [
            [row[: len(row) // 2] for row in self.rows(batch)],
            [row[len(row) // 2 :] for row in self.rows(batch)],
        ]
        left, right = (self.states(model, rows) for rows in halves)
        return (left * right).sum(-1)

    def rows(self, batch):
        return [[int(word) for word in text.text.split()] for text in batch.texts]

    def states(self, model, rows):
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        valid = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        states = model.bert(input_ids=ids, attention_mask=valid).last_hidden_state
        return (states * valid.unsqueeze(-1)).sum(1)


def test_a_text_that_passes_twice_has_one_gradient():
    model = made("bert")
    sites = find_sites(model)
    rows = []
    for batch in batched(1):
        gates = {n: torch.ones(s.heads, dtype=torch.float64, requires_grad=True) for n, s in sites.items()}
        with gated(model, gates=gates):
            Halves().losses(model, batch).sum().backward()
        rows.append(torch.cat([gate.grad for gate in gates.values()]).numpy())
    for size in (1, 5):
        found = Gradient().score(Calibration(model, sites, batched(size), Halves()))
        np.testing.assert_allclose(flat(found), np.abs(rows).mean(0), rtol=1e-9)
    costs = [
        Reconstruction().score(Calibration(model, sites, batched(size), Halves())).costs.start(blocks(model)["0"])
        for size in (1, 5)
    ]
    np.testing.assert_allclose(costs[0].costs([(1,)]), costs[1].costs([(1,)]), rtol=1e-7)


def test_heads_that_the_loss_does_not_run_through_are_worth_nothing():
    model = made("bert")
    first = SimpleNamespace(
        losses=lambda model, batch: model.bert.encoder.layer[0](model.bert.embeddings(batch.inputs["input_ids"])).sum(
            (1, 2)
        )
    )
    context = Calibration(model, find_sites(model), batched(1), first)
    for score in (Gradient(), Fisher(), Reconstruction(), Gradient(variant="per-token")):
        found = score.score(context)
        assert min(found["0"]) >= 0
        if score.kind != "reconstruction":
            assert (found["1"] == 0).all()
            assert found["0"].max() > 0


def test_more_rows_than_texts_are_refused():
    doubled = SimpleNamespace(
        losses=lambda model, batch: model(batch.inputs["input_ids"].repeat(2, 1)).logits[: len(batch.texts), 0]
    )
    with pytest.raises(BadInput, match="one row per text"):
        Gradient().score(Calibration(made("bert"), find_sites(made("bert")), batched(), doubled))


def test_gradients_without_moments_are_taken_again_with_them():
    context = calibration(made("bert"))
    assert not context.gradients().fit
    assert context.gradients(moments=True).fit
    assert context.gradients() is context.gradients(moments=True)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda model, batch: model(**batch.inputs).logits, "expected one per text"),
        (lambda model, batch: model(**batch.inputs).logits[:, 0].detach(), "do not depend"),
        (lambda model, batch: model(**batch.inputs).logits[:, 0] * 0, "no gradient at any head"),
    ],
)
def test_unusable_losses_are_explained(losses, said):
    with pytest.raises(BadInput, match=said):
        Gradient().score(Calibration(made("bert"), find_sites(made("bert")), batched(), SimpleNamespace(losses=losses)))


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
    c = c - (w @ c / w.sum() if bias is not None else 0)
    second = (c * w[:, None]).T @ c / w.sum()
    inner = g.T @ g / len(ROWS) if weight != "none" else np.eye(32) / np.trace(matrix @ second @ matrix.T)
    score = Reconstruction(weight=weight).score(calibration(model))
    head = np.arange(8, 16)
    expected = brute_cost(second, matrix, inner, head, 1e-2)
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


def test_fisher_blocks_count_heads_together():
    model = made("bert")
    oracle = gate_gradients(model)[:, :4]
    cost = Fisher(form="block").score(calibration(model)).costs.start(blocks(model)["0"])
    total = 0.0
    for head in (2, 0, 3):
        total += cost.costs([(head,)])[0]
        cost.remove((head,))
    assert total == pytest.approx((oracle[:, [2, 0, 3]].sum(1) ** 2).mean(), rel=1e-9)


def test_moments_are_those_of_numpy():
    rng = np.random.default_rng(0)
    sample, weights = rng.normal(3, 1, size=(50, 4)), rng.random(50)
    moments = Moments.zeros(4)
    for part in (slice(0, 20), slice(20, 50)):
        moments.add(torch.tensor(sample[part]), torch.tensor(weights[part]))
    np.testing.assert_allclose(moments.matrix(True), np.cov(sample.T, aweights=weights, ddof=0), rtol=1e-10)
    np.testing.assert_allclose(moments.mean(), np.average(sample, axis=0, weights=weights), rtol=1e-12)


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


def evidence_of(model, **arrays):
    return SimpleNamespace(heads=heads_of(find_sites(model)), arrays=arrays)


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
        assert method.passes >= 0
        select(find_sites(model), found.costs, Budget(heads=3), score=kind, notes=found.notes)
        with pytest.raises(ValueError, match="frozen"):
            method.kind = "other"


def test_repair_costs_need_no_second_measurement():
    model = made("bert")
    context = calibration(model)
    costs = RepairCosts(model, context.moments("gradient"), context.gradients(moments=True), 1e-2)
    block = blocks(model)["0"]
    first = costs.start(block)
    first.remove((0,))
    assert costs.start(block).costs([(0,)])[0] > 0, "a new start has lost nothing"


@pytest.mark.parametrize("name", MODELS)
def test_taylor_to_second_order_equals_autograd_through_the_gates(name):
    model = made(name)
    each = gate_gradients(model)
    found = SCORES["taylor2"]().score(calibration(model))
    np.testing.assert_allclose(flat(found), (-each + each**2 / 2).mean(0), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_activation_and_variance_equal_numpy(name):
    model = made(name)
    sites, rows = find_sites(model), {}
    for batch in batched():
        with torch.no_grad(), contexts(model, sites) as seen:
            model(**batch.inputs)
        for site, found in seen.items():
            rows.setdefault(site, []).append(found[0][batch.tokens[""].valid])
    size, spread_ = (SCORES[kind]().score(calibration(model)) for kind in ("activation", "variance"))
    for site, parts in rows.items():
        seen = torch.cat(parts).numpy()
        weight = output_weight(model, sites[site]).numpy()
        heads = seen.reshape(len(seen), sites[site].heads, -1)
        np.testing.assert_allclose(size[site], np.sqrt((heads**2).sum(-1).mean(0)), rtol=1e-6)
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
    with pytest.raises(BadInput, match="no role 'nose'"):
        SCORES["roles"](roles=("nose",)).score(context)
    with pytest.raises(BadInput, match="no statistics/confidence"):
        SCORES["confidence"]().score(calibration(model))


def test_combined_is_the_weighted_mean_of_ranks():
    model = made("bert")
    context = calibration(model)
    parts = {kind: flat(SCORES[kind]().score(context)) for kind in ("gradient", "magnitude")}
    ranks = {kind: values.argsort().argsort() / 7 for kind, values in parts.items()}
    found = SCORES["combined"](scores={"gradient": 3.0, "magnitude": 1.0}).score(context)
    np.testing.assert_allclose(flat(found), (3 * ranks["gradient"] + ranks["magnitude"]) / 4)
    alone = SCORES["combined"](scores={"magnitude": 1.0}).score(context)
    assert list(flat(alone).argsort()) == list(parts["magnitude"].argsort())
    for wrong in ({}, {"nose": 1.0}, {"combined": 1.0}, {"gradient": 0.0}):
        with pytest.raises(ValueError, match="scores"):
            SCORES["combined"](scores=wrong)


class Planted:
    """A loss that only one head serves: how far the model, gated, is from what that head alone would give."""

    def __init__(self, model, site, head):
        others = {name: [h for h in s.kept if (name, h) != (site, head)] for name, s in find_sites(model).items()}
        self.wanted = {}
        with torch.no_grad(), gated(model, others):
            for batch in batched():
                self.wanted[batch.texts[0].id] = model(**batch.inputs).logits

    def losses(self, model, batch):
        apart = model(**batch.inputs).logits - self.wanted[batch.texts[0].id]
        return 10 * apart.square().flatten(1).sum(1)


@pytest.mark.parametrize("form", ["hard-concrete", "subset"])
def test_gates_find_the_planted_head(form):
    model = made("bert")
    how = {"form": form, "steps": 60, "rate": 0.3, "keep": 0.125, "price": 0.05}
    context = Calibration(model, find_sites(model), batched(), Planted(model, "1", 2), seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = SCORES["gates"](**how).score(context)
    best = max(((name, head) for name in found for head in range(4)), key=lambda place: found[place[0]][place[1]])
    assert best == ("1", 2)
    again = SCORES["gates"](**how).score(context)
    np.testing.assert_array_equal(flat(found), flat(again))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_drawn_gates_are_gates():
    from headwise.prune.importance.learning import hard_concrete, open_probability, subset

    generator = torch.Generator().manual_seed(0)
    alpha = torch.linspace(-3, 3, 7, dtype=torch.float64)
    drawn = torch.stack([hard_concrete(alpha, generator) for _ in range(4000)])
    assert float(drawn.min()) == 0.0
    assert float(drawn.max()) == 1.0
    np.testing.assert_allclose((drawn > 0).double().mean(0), open_probability(alpha), atol=0.03)
    logits = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    for count in range(1, 6):
        chosen = subset(logits, count, 0.5, generator)
        np.testing.assert_allclose(np.sort(chosen.detach()), [0] * (6 - count) + [1] * count, atol=1e-12)
        assert torch.autograd.grad((chosen * torch.arange(6.0)).sum(), logits)[0].abs().sum() > 0


def test_outputs_need_no_labels_and_average_to_every_outputs_gradient():
    from headwise.prune.importance.outputs import Outputs

    model = made("bert")
    expected = np.zeros(8)
    for batch in batched(1):
        gates = {n: torch.ones(s.heads, dtype=torch.float64, requires_grad=True) for n, s in find_sites(model).items()}
        with gated(model, gates=gates):
            logits = model(**batch.inputs).logits
        row = logits[0] if logits.ndim == 2 else None
        assert row is not None
        for value in row - row.mean():
            slopes = torch.autograd.grad(value, list(gates.values()), retain_graph=True)
            expected += torch.cat(slopes).square().numpy()
    drawn = np.zeros(8)
    for seed in range(100):
        found = Calibration(model, find_sites(model), batched(), None, seed=seed).gradients(loss="outputs")
        drawn += np.concatenate([found.gates[name].outer.diagonal().numpy() for name in ("0", "1")])
    np.testing.assert_allclose(drawn / 100, expected, rtol=0.35)
    one, other = (Outputs(3).losses(model, batch) for batch in (batched(2)[0], batched(4)[0]))
    torch.testing.assert_close(one, other[:2])
    assert np.isfinite(flat(Reconstruction(weight="gradient", loss="outputs").score(calibration(model)))).all()
