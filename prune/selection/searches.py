"""Searches: how the heads that go are looked for, as a recipe says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Greedy(BaseModel):
    """The unit that costs least goes, again and again; one path, on which a smaller budget is a beginning.

    >>> Greedy().kind
    'greedy'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["greedy"] = "greedy"


class Exchange(BaseModel):
    """Greedy, then the best swap of a head that goes for one that stays, while the cost of all together falls.

    Within a site, and with scope `model` between sites, too.

    >>> Exchange(swaps=5).swaps
    5
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["exchange"] = "exchange"
    swaps: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = Field(
        default=1000, description="the most that are made; it ends by itself where none helps"
    )


class Counts(BaseModel):
    """How many heads each site loses: the cheapest numbers, then others near them tried on the model itself.

    Dynamic programming finds the numbers whose costs add up to the least under the budget. Then heads are moved from
    site to site; each candidate is repaired, gated and judged by the task's loss on the selection part, a fifth of the
    calibration texts, and the better one stays. Ends after `evaluations`, or where every neighbour was tried.

    >>> Counts(evaluations=0).evaluations
    0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["counts"] = "counts"
    evaluations: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = Field(
        default=64, description="candidates that are judged; 0 for dynamic programming alone"
    )
    seconds: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="the most that judging may take; where it ends the search, the plan is not reproducible",
    )


Search = Greedy | Exchange | Counts
SEARCHES: Mapping[str, type[BaseModel]] = {"greedy": Greedy, "exchange": Exchange, "counts": Counts}
