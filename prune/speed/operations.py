"""How much there is to do: operations of a forward pass, parameters, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headwise.prune.tasks.outcome import judging

#: Fused attention kernels. The counter knows some of them, on the CPU none, and takes equal numbers of query
#: and key heads for granted.
_FUSED = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def operations(
    model: nn.Module, inputs: Mapping[str, Any] | Sequence[Any], named: Mapping[str, Any] | None = None
) -> int:
    """Floating-point operations of one forward pass (a multiplication with its addition counts two).

    Counted by `torch.utils.flop_counter`: matrix products, convolutions and attention, which is where nearly
    all of the work is. Causal attention is counted as a full one, as the kernels without a skip do it.

    Args:
        model: any module.
        inputs: the forward's arguments by name, or in order.
        named: arguments by name beside those in order.

    >>> operations(nn.Linear(4, 8, bias=False), {"input": torch.ones(2, 4)})
    128
    """
    known = (getattr(torch.ops.aten, name, None) for name in _FUSED)
    mapping: dict[Any, Any] = {kernel: _attention for kernel in known if kernel is not None}
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, named or {})
    with judging(model), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        model(*args, **kwargs)
    return int(counter.get_total_flops())


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of attention from the shapes [batch, head, token, width]: scores, then weighted values."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[-2] * (width + value[-1])


def parameters(model: nn.Module) -> int:
    """The number of parameters; tied ones count once.

    >>> parameters(nn.Linear(4, 8))
    40
    """
    return sum(parameter.numel() for parameter in model.parameters())


def size_in_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers as they stand in memory; tied ones count once.

    >>> size_in_bytes(nn.Linear(4, 8))
    160
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
