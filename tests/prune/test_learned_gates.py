"""Gates that are trained: they find what was planted, and are drawn as they should be."""

import copy
import weakref

import numpy as np
import pytest
import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_weight
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import Budget, select
from tests.prune.importance_scene import batched, calibration, flat, made


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


class Once:
    """Batches that are made when they are asked for, as those of a data set."""

    def __init__(self):
        self.alive = weakref.WeakSet()

    def __iter__(self):
        for batch in batched(2):
            one = copy.copy(batch)
            self.alive.add(one)
            assert len(self.alive) <= 2, "batches of before are kept"
            yield one


def test_batches_are_not_kept_while_gates_are_trained():
    context = calibration(made("bert"), Once())
    assert len(list(batched(2))) > 2
    assert np.isfinite(flat(SCORES["gates"](steps=9, price=0.05).score(context))).all()


def leaning(name, site, head):
    """A model that says what it says by one head: the columns of all others are next to nothing."""
    model = made("bert" if name == "bare" else name)
    for where, found in find_sites(model).items():
        weight = output_weight(model, found)
        for other in range(found.heads):
            weight.data[:, 8 * other : 8 * other + 8] *= 1 if (where, other) == (site, head) else 0.02
    return model.bert if name == "bare" else model


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gpt2", {"loss": "predictions", "price": 0.05}),
        ("gpt2", {"loss": "predictions", "form": "subset", "heads": 1}),
        ("gpt2", {"loss": "predictions", "form": "subset", "heads": 1, "weights": "free"}),
        ("bare", {"loss": "outputs", "price": 0.05}),
        ("bare", {"loss": "outputs", "form": "subset", "keep": 0.125}),
    ],
)
def test_gates_find_the_planted_head_without_labels(name, how):
    model = leaning(name, "1", 2)
    found = SCORES["gates"](steps=30, rate=0.2, **how).score(Calibration(model, find_sites(model), batched(), seed=1))
    best = max(((site, head) for site in found for head in range(4)), key=lambda place: found[place[0]][place[1]])
    assert best == ("1", 2)


def test_losses_without_labels_are_those_of_the_formulas():
    from headwise.prune.importance.apart import losses_of

    for name in ("bert", "gpt2", "bare"):
        model = leaning(name, "1", 2)
        batch, shut = batched(12)[0], {"1": [2]}
        valid = batch.tokens[""].valid
        with torch.no_grad():
            outputs = [model(**batch.inputs)]
            with gated(model, shut):
                outputs.append(model(**batch.inputs))
        dense, silenced = (getattr(found, "logits", None) for found in outputs)
        context = Calibration(model, find_sites(model), [batch])
        if name == "bare":
            off = outputs[1].last_hidden_state - outputs[0].last_hidden_state
            with pytest.raises(BadInput, match=r"BertModel predicts nothing .* use loss: outputs"):
                losses_of(context, "predictions", "gates")(batch)
        else:
            off = (silenced - silenced.mean(-1, keepdim=True)) - (dense - dense.mean(-1, keepdim=True))
            nats = torch.nn.functional.kl_div(
                silenced.log_softmax(-1), dense.log_softmax(-1), reduction="none", log_target=True
            ).sum(-1)
        for loss, each in (("predictions", None if name == "bare" else nats), ("outputs", off.square().mean(-1))):
            if each is None:
                continue
            expected = each if each.ndim == 1 else torch.stack([r[v].mean() for r, v in zip(each, valid, strict=True)])
            measure = losses_of(context, loss, "gates")(batch)
            torch.testing.assert_close(measure(model), torch.zeros(12, dtype=torch.float64), atol=1e-12, rtol=0)
            with gated(model, shut):
                torch.testing.assert_close(measure(model).detach(), expected)
            assert float(expected.min()) > 1e-6


def test_labels_that_each_are_a_yes_or_no_diverge_one_by_one():
    from headwise.prune.tasks.divergence import divergence

    wanted, given = torch.randn(2, 5, 3, dtype=torch.float64)
    p, q = wanted.sigmoid(), given.sigmoid()
    by_hand = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(-1)
    torch.testing.assert_close(divergence(wanted, given, batched(5)[0], independent=True), by_hand)


def test_without_a_task_the_message_says_what_does_without_labels():
    model = made("bert")
    with pytest.raises(BadInput, match="score gates needs a task with a loss; choose a task, loss: predictions"):
        SCORES["gates"]().score(Calibration(model, find_sites(model), batched()))


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


def test_trained_again_on_halves_of_the_texts_gates_say_how_firm_their_ranking_is():
    from headwise.prune.deciding.stability import chosen_again, stability

    model = made("bert")
    sites = find_sites(model)
    context = Calibration(model, sites, batched(), Planted(model, "1", 2), seed=1)
    once, found = (SCORES["gates"](steps=30, rate=0.3, heads=1, again=again).score(context) for again in (0, 2))
    np.testing.assert_array_equal(flat(found), flat(once))
    shares = {head: int(note.split()[5]) for head, note in found.notes["1"].items()}
    assert max(shares, key=shares.__getitem__) == 2
    assert found.notes["1"][2] == f"its gate is open in {shares[2]} % of draws"
    assert found.resampled.texts.sum() == 12, "each text once, though steps go through them again"
    told = stability("gates", found, found.resampled, seed=0)
    assert (told["resamples"], told["how"]) == (2, "trained anew each time, on half of the texts and with other draws")
    assert -1 <= told["low"] < told["high"] <= 1
    firm = chosen_again(found, sites, lambda costs: select(sites, costs, Budget(heads=5)).remove, 8)
    assert (firm["times"], firm["removed"]) == (2, 5)
    assert "2" not in firm["heads"]["1"], "the planted head goes on neither half"
    silent = stability("gates", once, once.resampled, seed=0)
    assert silent["tau"] is None
    assert silent["how"].endswith("`score.again: 2` asks for two")


def test_trainings_on_half_of_the_texts_see_the_other_half_without_weight():
    from headwise.prune.importance.learning import learned
    from headwise.prune.importance.parts import parts_of
    from headwise.prune.importance.resampled import apart

    model, half = made("bert"), apart(1)[0]
    task = Planted(model, "1", 2)

    class Weighed:
        def losses(self, model, batch):
            return task.losses(model, batch) * torch.from_numpy(half[parts_of(batch.texts).numpy()])

    sites, how = find_sites(model), SCORES["gates"](steps=5)
    one = learned(Calibration(model, sites, batched(), task), how, half)
    np.testing.assert_array_equal(flat(one), flat(learned(Calibration(model, sites, batched(), Weighed()), how)))
    others = (learned(Calibration(model, sites, batched(), task), how, *more) for more in ((), (half, 1)))
    assert not any(np.array_equal(flat(one), flat(other)) for other in others)


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
        ({"weights_rate": 1e-3}, "belongs to weights: free"),
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
