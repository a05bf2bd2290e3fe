"""Gates that are trained: they find what was planted, and are drawn as they should be."""

import numpy as np
import pytest
import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites
from headwise.prune.importance import SCORES, Calibration
from tests.prune.importance_scene import batched, flat, made


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


@pytest.mark.parametrize(
    "how",
    [
        {"price": 0.05},
        {"heads": 1},
        {"form": "subset", "keep": 0.125},
        {"form": "subset", "heads": 1, "weights": "free"},
    ],
    ids=["price", "target", "subset", "free"],
)
def test_gates_find_the_planted_head(how):
    model = made("bert")
    how = {"steps": 60, "rate": 0.3, **how}
    context = Calibration(model, find_sites(model), batched(), Planted(model, "1", 2), seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = SCORES["gates"](**how).score(context)
    best = max(((name, head) for name in found for head in range(4)), key=lambda place: found[place[0]][place[1]])
    assert best == ("1", 2)
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


def test_the_same_seed_trains_the_same_gates():
    model = made("bert")
    how = SCORES["gates"](steps=5, heads=2, weights="free")
    found = [
        flat(how.score(Calibration(model, find_sites(model), batched(), Planted(model, "1", 2), seed=seed)))
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("target", [2, 5])
@pytest.mark.parametrize("scale", [0.05, 20.0])
def test_a_target_opens_as_many_gates_and_the_right_ones(target, scale):
    """Whatever a loss weighs: ten heads, of which as many as there is room for are worth ten times the others."""
    from headwise.prune.importance.learning import hard_concrete, moved, open_probability

    free, generator = torch.zeros(10, dtype=torch.float64, requires_grad=True), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([free], lr=0.1)
    worth = scale * torch.where(torch.arange(10) * 7 % 10 < target, 1.0, 0.1).double()
    for _ in range(150):
        optimizer.zero_grad()
        (worth * (1 - hard_concrete(moved(free, target), generator))).sum().backward()
        optimizer.step()
    opened = open_probability(moved(free.detach(), target))
    assert float(opened.sum()) == pytest.approx(target)
    assert ((opened > 0.5) == (worth > 0.5 * scale)).all()


def test_free_weights_learn_in_a_copy():
    model = made("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []

    class Watching(Planted):
        def losses(self, model, batch):
            seen.append(model.bert.encoder.layer[0].attention.self.query.weight.detach().clone())
            return super().losses(model, batch)

    context = Calibration(model, find_sites(model), batched(), Watching(model, "1", 2), seed=0)
    SCORES["gates"](steps=3, weights="free", weights_rate=1e-2).score(context)
    assert not torch.equal(seen[0], seen[2])
    assert torch.equal(seen[0], before["bert.encoder.layer.0.attention.self.query.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"price": 0.1, "keep": 0.5}, "one of price, keep, heads"),
        ({"heads": 3, "keep": 0.5}, "one of price, keep, heads"),
        ({"form": "subset", "price": 0.1}, "belongs to form: hard-concrete"),
        ({"heads": 0}, "greater than or equal to 1"),
    ],
)
def test_aims_that_do_not_go_together_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        SCORES["gates"](**wrong)


def test_more_open_gates_than_heads_are_refused():
    model = made("bert")
    context = Calibration(model, find_sites(model), batched(), Planted(model, "1", 2))
    with pytest.raises(BadInput, match="of 8; give fewer"):
        SCORES["gates"](heads=8).score(context)
