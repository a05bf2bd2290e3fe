"""The output projection of a site as one matrix, whichever way its class stores it."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.sites import Site


def output_weight(model: nn.Module, site: Site) -> Float[Tensor, "out columns"]:
    """A view of the projection's weight, output features by context columns (`kept*head_dim`).

    Writing into the view (under `torch.no_grad`) writes into the model. GPT-2's Conv1D is transposed,
    XLNet's three-dimensional parameter is flattened.

    >>> from transformers import GPT2Config, GPT2Model
    >>> from headwise.analysis.sites import find_sites
    >>> model = GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=16))
    >>> output_weight(model, find_sites(model)["0"]).shape
    torch.Size([16, 16])
    """
    path, _, bare = site.output.partition(":")
    module = model.get_submodule(path)
    weight: Tensor = getattr(module, bare or "weight").detach()
    if bare:
        return weight.flatten(1)
    return weight.T if type(module).__name__ == "Conv1D" else weight


def output_bias(model: nn.Module, site: Site) -> Float[Tensor, " out"] | None:
    """A view of the projection's bias, or None where it has none."""
    path, _, bare = site.output.partition(":")
    bias = None if bare else getattr(model.get_submodule(path), "bias", None)
    return bias.detach() if isinstance(bias, Tensor) else None
