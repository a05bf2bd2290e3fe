"""The oracle of the walk: heads removed by zeroing their columns of the output projection by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch

from headwise.analysis.gates.synthetic import main_output


def oracle(model: Any, sites: dict[str, Any], remove: dict[str, list[int]]) -> Any:
    """A copy of the model in which these heads give nothing."""
    model = copy.deepcopy(model)
    for name, heads in remove.items():
        path, _, bare = sites[name].output.partition(":")
        module, width = model.get_submodule(path), sites[name].head_dim
        # A weight of its own, also where another module is tied to it.
        weight = getattr(module, bare or "weight").detach().clone()
        for head in heads:
            rows = slice(head * width, (head + 1) * width)
            if bare:
                weight[:, head] = 0
            elif type(module).__name__ == "Conv1D":
                weight[rows] = 0
            else:
                weight[:, rows] = 0
        setattr(module, bare or "weight", torch.nn.Parameter(weight))
    return model


def run(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The main output, with the same draws each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return main_output(model(**inputs))


def apart(want: torch.Tensor, got: torch.Tensor) -> float:
    """The greatest difference, on the scale of what is wanted; infinite where shapes or finiteness differ."""
    if want.shape != got.shape:
        return float("inf")
    if not torch.equal(torch.isfinite(want), torch.isfinite(got)):
        return float("inf")
    want, got = want.nan_to_num(0, 0, 0), got.nan_to_num(0, 0, 0)
    return ((want - got).abs().max() / want.abs().max().clamp(min=1e-3)).item()
