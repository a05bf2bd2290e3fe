"""Learning: the training of gates, and how they are drawn."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.analysis.gates.still import still
from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.prune.importance.apart import losses_of
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.parts import parts_of
from headwise.prune.importance.resampled import PARTS
from headwise.prune.importance.wide_steps import wide_steps

if TYPE_CHECKING:
    from headwise.prune.importance.gates import Gates

#: Stretch and temperature of the hard concrete distribution, and what keeps its logarithms finite.
_LOW, _HIGH, _BETA, _EPSILON = -0.1, 1.1, 0.33, 1e-6


def hard_concrete(alpha: Float[Tensor, " head"], generator: torch.Generator) -> Float[Tensor, " head"]:
    """Gates in [0, 1], many exactly 0 or 1, drawn by log alpha; differentiable.

    >>> hard_concrete(torch.tensor([99.0, -99.0]), torch.Generator().manual_seed(0))
    tensor([1., 0.])
    """
    u = torch.rand(alpha.shape, generator=generator).clamp(_EPSILON, 1 - _EPSILON).to(alpha)
    soft = torch.sigmoid((u.log() - (1 - u).log() + alpha) / _BETA)
    return (soft * (_HIGH - _LOW) + _LOW).clamp(0, 1)


def open_probability(alpha: Float[Tensor, " head"]) -> Float[Tensor, " head"]:
    """Probability that a gate is not 0.

    >>> open_probability(torch.tensor([99.0, -99.0])).round()
    tensor([1., 0.])
    """
    return torch.sigmoid(alpha - _BETA * math.log(-_LOW / _HIGH))


def moved(alpha: Float[Tensor, " head"], target: int) -> Float[Tensor, " head"]:
    """The log alphas, all moved by as much, so that `target` gates are expected to be open.

    >>> open_probability(moved(torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64), 2)).sum().round(decimals=6)
    tensor(2., dtype=torch.float64)
    """
    with torch.no_grad():
        low, high = -float(alpha.max()) - 50.0, -float(alpha.min()) + 50.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if float(open_probability(alpha + middle).sum()) < target else (low, middle)
        opened = open_probability(alpha + low)
        share = opened * (1 - opened)
        share = share / share.sum().clamp(min=torch.finfo(alpha.dtype).tiny)
    # The move depends on all log alphas (implicit function): one gate opens only at the expense of the others.
    others = share @ alpha
    return alpha + low - (others - others.detach())


def subset(
    logits: Float[Tensor, " head"], count: int, temperature: float, generator: torch.Generator
) -> Float[Tensor, " head"]:
    """Exactly `count` gates of 1, drawn by logits; the gradient is that of a soft choice whose sum is `count`.

    >>> subset(torch.tensor([99.0, 0.0, 50.0]), 2, 0.1, torch.Generator().manual_seed(0))
    tensor([1., 0., 1.])
    """
    uniform = torch.rand(logits.shape, generator=generator).clamp(_EPSILON, 1 - _EPSILON).to(logits)
    noisy = logits - (-uniform.log()).log()
    left, soft = noisy, torch.zeros_like(logits)
    for _ in range(count):
        chosen = torch.softmax(left / temperature, -1)
        soft = soft + chosen
        left = left + (1 - chosen).clamp(min=torch.finfo(logits.dtype).tiny).log()
    hard = torch.zeros_like(logits).scatter(0, noisy.topk(count).indices, 1.0)
    # Forward the hard choice, backward the soft one; the difference is exact zero or one, so no rounding stays.
    return soft + (hard - soft).detach() if soft.requires_grad else hard


def learned(
    calibration: Calibration, how: Gates, half: np.ndarray | None = None, training: int = 0
) -> dict[str, np.ndarray]:
    """Log alphas or logits of the heads that exist, by site, after training.

    Args:
        calibration: model and texts.
        how: what is trained, and how.
        half: how much the texts of each part count, [part]; all count once if left out.
        training: number of the training: each draws its gates anew.

    Raises:
        BadInput: no task where labels are asked for, no predictions where those are, a loss that the gates cannot
            change or that is not finite, or too many heads to stay open.
    """
    asked = losses_of(calibration, how.loss, how.kind)
    sites, model = calibration.sites, calibration.model
    owners = [(name, head) for name, site in sites.items() for head in site.kept]
    target = how.target(len(owners))
    start = 2.0 if how.form == "hard-concrete" else 0.0
    free = torch.full((len(owners),), start, dtype=torch.float64, requires_grad=True)
    draw = _drawing(how, target, torch.Generator().manual_seed(calibration.seed + 7919 * training))
    price = (0.01 if how.price is None else how.price) if how.form == "hard-concrete" and target is None else 0.0
    learning: list[dict[str, Any]] = [{"params": [free], "lr": how.rate}]
    with _holding(model, how.weights == "free") as model:
        weights = [p for p in model.parameters() if p.requires_grad]
        learning += [{"params": weights, "lr": how.weights_rate}] if weights else []
        optimizer = wide_steps(torch.optim.Adam(learning))
        # Read anew for every round: what goes round by itself keeps all batches, which images do not bear.
        rounds = itertools.chain.from_iterable(itertools.repeat(calibration.batches, how.steps))
        texts = itertools.islice(rounds, how.steps)
        for step, batch in enumerate(track(texts, total=how.steps, label="Training gates")):
            losses = asked(batch)
            with gated(model, gates=_by_site(draw(free, step), owners, sites)):
                loss = _mean(losses(model), batch, half)
            if not loss.requires_grad or not bool(torch.isfinite(loss)):
                raise BadInput("score gates: the loss is not finite, or gates do not change it; choose another")
            optimizer.zero_grad()
            (loss + price * open_probability(free).sum().to(loss)).backward()
            optimizer.step()
    numbers = (moved(free, target) if how.form == "hard-concrete" and target else free).detach().numpy()
    return {name: numbers[[owner == name for owner, _ in owners]] for name in sites}


def texts_by_part(calibration: Calibration, steps: int) -> np.ndarray:
    """How many texts of each part so many steps see, [part]; none is counted twice."""
    found = np.zeros(PARTS)
    for batch in itertools.islice(calibration.batches, steps):
        np.add.at(found, parts_of(batch.texts).numpy(), 1)
    return found


def _mean(losses: Float[Tensor, " batch"], batch: Batch, half: np.ndarray | None) -> Tensor:
    if half is None:
        return losses.mean()
    return (losses * torch.from_numpy(half)[parts_of(batch.texts)].to(losses)).mean()


@contextlib.contextmanager
def _holding(model: Any, free: bool) -> Iterator[Any]:
    """The model held still, or a copy of it that learns."""
    if not free:
        with still(model):
            yield model
        return
    copied = copy.deepcopy(model).eval()
    for parameter in copied.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    yield copied


def _by_site(drawn: Tensor, owners: Sequence[tuple[str, int]], sites: Mapping[str, Site]) -> dict[str, Tensor]:
    gates = {}
    for name, site in sites.items():
        places = [index for index, (owner, _) in enumerate(owners) if owner == name]
        kept = torch.tensor(list(site.kept), dtype=torch.long)
        gates[name] = torch.ones(site.heads, dtype=drawn.dtype).scatter(0, kept, drawn[places])
    return gates


def _drawing(how: Gates, target: int | None, generator: torch.Generator) -> Callable[[Tensor, int], Tensor]:
    if target is None:
        return lambda free, _: hard_concrete(free, generator)
    if how.form == "hard-concrete":
        return lambda free, _: hard_concrete(moved(free, target), generator)
    # The choice gets harder as training goes on, from temperature 1 to a hundredth.
    return lambda free, step: subset(free, target, 0.01 ** (step / max(how.steps - 1, 1)), generator)
