"""Budget: how much is to go, always of the original model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from headwise.analysis.sites import Site


class Budget(BaseModel):
    """How many heads are to be gone in the end, as a number or as a fraction of the dense model's heads.

    Heads that an earlier cut took count as gone: repeating a recipe removes nothing more.

    >>> Budget(fraction=0.5)
    Budget(heads=None, fraction=0.5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: StrictInt | None = Field(default=None, ge=0, description="number of heads to remove")
    fraction: float | None = Field(default=None, ge=0, le=1, description="share of all heads to remove")

    @model_validator(mode="after")
    def _exactly_one(self) -> Budget:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of heads, fraction (got {', '.join(given) or 'none'})")
        return self

    def count(self, sites: Mapping[str, Site]) -> int:
        """Heads to be gone in the end, a fraction rounded down.

        >>> Budget(fraction=0.6).count({"0": Site("0", "attn", "attn.o", 12, 12, 8)})
        7
        """
        if self.heads is not None:
            return self.heads
        total = sum(site.heads for site in sites.values())
        return math.floor((self.fraction or 0.0) * total + 1e-9)
