"""Learning: the training of gates, and how they are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import gated
from headwise.analysis.progress import track
from headwise.analysis.still import still
from headwise.prune.importance.calibration import Calibration

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


def learned(calibration: Calibration, how: Gates) -> dict[str, np.ndarray]:
    """Log alphas or logits of the heads that exist, by site, after training.

    Raises:
        BadInput: no task, or a loss that the gates cannot change or that is not finite.
    """
    if calibration.task is None:
        raise BadInput("score gates needs a task with a loss; choose a task, or score magnitude or random")
    sites = calibration.sites
    owners = [(name, head) for name, site in sites.items() for head in site.kept]
    start = 2.0 if how.form == "hard-concrete" else 0.0
    free = torch.full((len(owners),), start, dtype=torch.float64, requires_grad=True)
    draw = _drawing(how, len(owners), torch.Generator().manual_seed(calibration.seed))
    optimizer = torch.optim.Adam([free], lr=how.rate)
    texts = itertools.islice(itertools.cycle(calibration.batches), how.steps)
    with still(calibration.model):
        for step, batch in enumerate(track(texts, total=how.steps, label="Training gates")):
            drawn = draw(free, step)
            gates = {}
            for name, site in sites.items():
                places = [index for index, (owner, _) in enumerate(owners) if owner == name]
                gates[name] = torch.ones(site.heads, dtype=free.dtype).scatter(
                    0, torch.tensor(list(site.kept), dtype=torch.long), drawn[places]
                )
            with gated(calibration.model, gates=gates):
                loss = calibration.task.losses(calibration.model, batch).mean()
            if not loss.requires_grad or not bool(torch.isfinite(loss)):
                raise BadInput("score gates: the task's loss is not finite, or gates do not change it; choose another")
            if how.form == "hard-concrete":
                loss = loss + how.price * open_probability(free).sum().to(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found: dict[str, np.ndarray] = {}
    numbers = free.detach().numpy()
    for name in sites:
        found[name] = numbers[[index for index, (owner, _) in enumerate(owners) if owner == name]]
    return found


def _drawing(how: Gates, heads: int, generator: torch.Generator) -> Callable[[Tensor, int], Tensor]:
    if how.form == "hard-concrete":
        return lambda free, _: hard_concrete(free, generator)
    count = min(max(round(how.keep * heads), 1), heads - 1) if heads > 1 else 1
    # The choice gets harder as training goes on, from temperature 1 to a hundredth.
    return lambda free, step: subset(free, count, 0.01 ** (step / max(how.steps - 1, 1)), generator)
