"""Scores from the loss's gradient: equal to autograd through the gates, one text at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.importance.fisher import Fisher
from headwise.prune.importance.gradient import Gradient
from headwise.prune.importance.reconstruction import Reconstruction
from tests.prune.importance_scene import (
    MODELS,
    ROWS,
    Labels,
    batched,
    blocks,
    calibration,
    flat,
    gate_gradients,
    made,
)


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


def test_per_batch_is_what_its_name_says():
    model = made("bert")
    oracle = gate_gradients(model)
    expected = sum(np.abs(oracle[start : start + 4].sum(0)) for start in range(0, len(ROWS), 4)) / len(ROWS)
    found = Gradient(variant="per-batch").score(calibration(model, batched(4)))
    np.testing.assert_allclose(flat(found), expected, rtol=1e-9)


def test_normalised_scores_have_length_one_in_every_site():
    found = Gradient(normalize="site").score(calibration(made("bert")))
    assert [np.linalg.norm(found[name]) for name in found] == pytest.approx([1.0, 1.0])


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


def test_fisher_blocks_count_heads_together():
    model = made("bert")
    oracle = gate_gradients(model)[:, :4]
    cost = Fisher(form="block").score(calibration(model)).costs.start(blocks(model)["0"])
    total = 0.0
    for head in (2, 0, 3):
        total += cost.costs([(head,)])[0]
        cost.remove((head,))
    assert total == pytest.approx((oracle[:, [2, 0, 3]].sum(1) ** 2).mean(), rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_taylor_to_second_order_equals_autograd_through_the_gates(name):
    model = made(name)
    each = gate_gradients(model)
    found = SCORES["taylor2"]().score(calibration(model))
    np.testing.assert_allclose(flat(found), (-each + each**2 / 2).mean(0), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("loss", ["predictions", "outputs"])
def test_taylor_without_labels_leaves_out_the_first_term_which_is_0_there(loss):
    context = calibration(made("bert"))
    found = SCORES["taylor2"](loss=loss).score(context)
    np.testing.assert_allclose(flat(found), flat(Fisher(loss=loss).score(context)) / 2, rtol=1e-12)
    again = found.resampled.anew(np.ones(64))
    np.testing.assert_allclose(flat(again), flat(found), rtol=1e-12)


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
        drawn += np.concatenate([found.gates[name].total().outer.diagonal() for name in ("0", "1")])
    np.testing.assert_allclose(drawn / 100, expected, rtol=0.35)
    one, other = (Outputs(3).losses(model, batch) for batch in (batched(2)[0], batched(4)[0]))
    torch.testing.assert_close(one, other[:2])
    assert np.isfinite(flat(Reconstruction(weight="gradient", loss="outputs").score(calibration(model)))).all()


class Saying(nn.Module):
    """A model that always says the same."""

    def __init__(self, logits):
        super().__init__()
        self.config, self.logits = SimpleNamespace(problem_type=None), logits

    def forward(self, **_):
        return SimpleNamespace(logits=self.logits)


@pytest.mark.parametrize("way", ["classes", "independent", "number"])
def test_drawn_predictions_have_the_curvature_of_the_divergence(way):
    """The mean outer product of their gradients is the Hessian of KL(p || p moved) in the logits."""
    from headwise.prune.importance.predictions import _surprise

    row = torch.tensor([1.5, -0.3, 0.2, -2.0] if way != "number" else [0.7], dtype=torch.float64)
    logits = row.repeat(40_000, 1).requires_grad_()
    told = _surprise(logits, way == "independent", torch.Generator().manual_seed(0))
    slopes = torch.autograd.grad(told.sum(), logits)[0]
    chances = row.softmax(-1)
    expected = {
        "classes": torch.diag(chances) - torch.outer(chances, chances),
        "independent": torch.diag(row.sigmoid() * (1 - row.sigmoid())),
        "number": torch.ones(1, 1),
    }[way]
    torch.testing.assert_close(slopes.T @ slopes / len(row.repeat(40_000, 1)), expected.double(), atol=0.01, rtol=0)
    assert slopes.mean(0).abs().max() < 0.02, "the divergence itself has no slope"


def test_predictions_are_drawn_token_by_token_and_weighed_so_that_squares_average():
    from headwise.prune.importance.predictions import Predictions

    model = made("gpt2")
    one = batched(1)[5]
    tokens = one.tokens[""]
    told = Predictions(3).losses(model, one)[0]
    logits = model(**one.inputs).logits[0][tokens.valid[0]]
    text = one.texts[0]
    generator = torch.Generator().manual_seed((int(text.id[:12], 16) + 7919 * 4) % 2**63)
    drawn = (logits.softmax(-1).cumsum(-1) < torch.rand(len(logits), 1, generator=generator).double()).sum(-1)
    nats = nn.functional.cross_entropy(logits, drawn, reduction="none")
    torch.testing.assert_close(told, nats.sum() / len(nats) ** 0.5)
    for logits, said in ((None, "predicts nothing"), (torch.zeros(1, 99, 2), "not one per text or token")):
        with pytest.raises(BadInput, match=said):
            Predictions().losses(Saying(logits), one)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_ablation_without_labels_is_the_divergence_from_all_heads(name):
    model, each = made(name), []
    found = SCORES["ablation"](loss="predictions").score(Calibration(model, find_sites(model), batched(12)))
    batch = batched(12)[0]
    valid = batch.tokens[""].valid
    with torch.no_grad():
        dense = model(**batch.inputs).logits.log_softmax(-1)
        with gated(model, {"1": [2]}):
            silenced = model(**batch.inputs).logits.log_softmax(-1)
    each = nn.functional.kl_div(silenced, dense, reduction="none", log_target=True).sum(-1)
    if each.ndim == 2:
        each = torch.stack([row[real].mean() for row, real in zip(each, valid, strict=True)])
    assert found["1"][2] == pytest.approx(float(each.mean()), rel=1e-6)
    with pytest.raises(BadInput, match="needs a task"):
        SCORES["ablation"]().score(Calibration(model, find_sites(model), batched(12)))
