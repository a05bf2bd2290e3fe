"""None: the heads go, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes


class NoCompensation(BaseModel):
    """Change nothing.

    >>> NoCompensation().repair(Calibration(None, {}, None), {})
    {'kind': 'none', 'sites': {}}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none"] = "none"

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `repair`: none."""

    def repair(self, calibration: Calibration, remove: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """An empty report: no site was changed."""
        return {"kind": self.kind, "sites": {}}
