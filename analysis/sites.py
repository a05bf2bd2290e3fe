"""Sites: where the attention heads of a model live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """One attention block call of the forward pass.

    Heads are counted as in the dense model, always; `kept` says which of them are still there.

    Attributes:
        name: for people and files: `3`, `encoder.self.3`, `decoder.cross.0`, `vision.self.1`, `pool.0`.
        module: path of the attention module from the model's root.
        output: path of the output projection from the model's root.
        heads: query heads of the dense model.
        kv_heads: key/value heads of the dense model.
        head_dim: width of one head's context at the input of the output projection.
        kind: `self`, `cross` or `pool`.
        stack: `` for a single stack, else `encoder`, `decoder`, `text`, `vision`, ….
        layer: depth in the stack, from 0.
        call: which call of the module in one forward pass (shared layers are called many times).
        calls: how often one forward pass calls the module.
        kept: original indices of the heads that still exist, in their order at the projection's input.
        window: declared sliding window in keys, or None.
        refusal: why the site cannot be cut, or ``.
    """

    name: str
    module: str
    output: str
    heads: int
    kv_heads: int
    head_dim: int
    kind: str = "self"
    stack: str = ""
    layer: int = 0
    call: int = 0
    calls: int = 1
    kept: tuple[int, ...] = ()
    window: int | None = None
    refusal: str = ""

    def group(self, head: int) -> int:
        """The key/value head that serves a query head.

        >>> Site("0", "attn", "attn.o", heads=4, kv_heads=2, head_dim=8).group(3)
        1
        """
        return head // (self.heads // self.kv_heads)


def heads_of(sites: Mapping[str, Site]) -> list[tuple[str, int]]:
    """Every head as (site name, original index): the head axis of all evidence, in this order.

    >>> heads_of({"0": Site("0", "attn", "attn.o", heads=2, kv_heads=2, head_dim=8)})
    [('0', 0), ('0', 1)]
    """
    return [(name, head) for name, site in sites.items() for head in range(site.heads)]
