"""Gates that are trained: they find what was planted, and are drawn as they should be."""

import numpy as np
import pytest
import torch

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
