"""Budget: how much is to go, always of the original model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from headwise.analysis.sites import Site

#: What a budget can be stated in; `length` goes with operations and is no amount.
AMOUNTS = ("heads", "fraction", "parameters", "operations", "cache")


class Budget(BaseModel):
    """How much is to be gone in the end: heads, or a share of what the dense model has, takes or does.

    What an earlier cut took counts as gone: repeating a recipe removes nothing more.

    >>> Budget(fraction=0.5).amount
    'fraction'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: StrictInt | None = Field(default=None, ge=0, description="number of heads to remove")
    fraction: float | None = Field(default=None, ge=0, le=1, description="share of all heads to remove")
    parameters: float | None = Field(
        default=None, ge=0, le=1, description="share of the model's parameters to remove, all parts counted"
    )
    operations: float | None = Field(
        default=None, ge=0, le=1, description="share of a forward pass's operations to remove, at `length` tokens"
    )
    cache: float | None = Field(default=None, ge=0, le=1, description="share of the key/value cache to remove")
    length: StrictInt | None = Field(
        default=None, ge=1, le=1_000_000, description="tokens at which operations are counted; with operations only"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Budget:
        given = [name for name in AMOUNTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(AMOUNTS)} (got {', '.join(given) or 'none'})")
        if (self.length is None) is (self.operations is not None):
            raise ValueError("operations and length belong together: give both, or neither")
        return self

    @property
    def amount(self) -> str:
        """Which amount is given.

        >>> Budget(operations=0.2, length=128).amount
        'operations'
        """
        return next(name for name in AMOUNTS if getattr(self, name) is not None)

    @property
    def metered(self) -> bool:
        """Whether the amount is not a number of heads, so that a model has to be measured.

        >>> Budget(heads=3).metered, Budget(cache=0.5).metered
        (False, True)
        """
        return self.amount not in ("heads", "fraction")

    def count(self, sites: Mapping[str, Site]) -> int:
        """Heads to be gone in the end, a fraction rounded down.

        >>> Budget(fraction=0.6).count({"0": Site("0", "attn", "attn.o", 12, 12, 8)})
        7
        """
        if self.heads is not None:
            return self.heads
        total = sum(site.heads for site in sites.values())
        return math.floor((self.fraction or 0.0) * total + 1e-9)
