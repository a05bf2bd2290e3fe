"""Wide steps: weights of half precision learn by float32 copies, in which no small step is lost to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: What rounds a step away that is less than some thousandth of a weight.
NARROW = (torch.float16, torch.bfloat16)


def wide_steps(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, which from now on steps on float32 copies of its half-precision weights and hands on what they are.

    A usual rate moves a weight by less than half of what tells bfloat16 numbers apart, so that stepping on the weights
    themselves moves next to none of them (Micikevicius et al., 2018, "Mixed precision training"). The gradient is
    taken from the weights, which have none after a step.

    >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    >>> optimizer = wide_steps(torch.optim.SGD([weight], lr=1e-3))
    >>> for _ in range(10):
    ...     weight.grad = torch.ones_like(weight)
    ...     optimizer.step()
    >>> weight.item(), weight.grad is None
    (0.98828125, True)
    """
    copies: list[tuple[Tensor, Tensor]] = []
    for group in optimizer.param_groups:
        for place, weight in enumerate(group["params"]):
            if weight.dtype in NARROW:
                copies.append((weight, weight.detach().float().requires_grad_()))
                group["params"][place] = copies[-1][1]

    def take(*_: Any) -> None:
        for weight, wide in copies:
            wide.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None

    def give(*_: Any) -> None:
        with torch.no_grad():
            for weight, wide in copies:
                weight.copy_(wide)

    optimizer.register_step_pre_hook(take)
    optimizer.register_step_post_hook(give)
    return optimizer
