"""Roles: heads that surely do something known stay."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.known import from_evidence
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores


class Roles(BaseModel):
    """The largest lower bound, over roles, of how far a head exceeds chance; 0 where it plays none surely.

    >>> Roles(roles=("previous",)).roles
    ('previous',)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Forward-backward passes over the calibration texts beyond the analysis, and how many more per head.
    passes: ClassVar[float] = 0
    passes_per_head: ClassVar[float] = 0

    kind: Literal["roles"] = "roles"
    roles: tuple[str, ...] = Field(
        default=(), description="the roles that count; all that the evidence knows, but dormant, if empty"
    )

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, and the role that gives it as a note.

        Raises:
            BadInput: the evidence knows no such role, or is of another model.
        """
        from headwise.analysis.errors import BadInput

        arrays = getattr(calibration.evidence, "arrays", {})
        known = sorted({name.split("/")[1] for name in arrays if name.startswith("roles/") and name.endswith("/low")})
        # That a head hands on nothing is no reason to keep it.
        chosen = self.roles or tuple(role for role in known if role != "dormant")
        unknown = [role for role in chosen if role not in known]
        if unknown or not chosen:
            raise BadInput(
                f"score roles: the evidence knows no role {', '.join(map(repr, unknown))}".removesuffix(" ")
                + f"; it has {', '.join(known) or 'none'}"
            )
        bounds = {role: from_evidence(calibration, f"roles/{role}/low", self.kind) for role in chosen}
        values, notes = {}, {}
        for name, site in calibration.sites.items():
            table = np.stack([np.nan_to_num(bounds[role][name]) for role in chosen])
            best = np.maximum(table.max(0), 0.0)
            values[name] = np.where(np.isin(np.arange(site.heads), site.kept), best, np.nan)
            notes[name] = {h: f"surely {chosen[int(table[:, h].argmax())]}" for h in site.kept if best[h] > 0}
        how = "read from the evidence, which keeps intervals and not single texts"
        return Scores(self.kind, values, notes=notes, resampled=Resampled(how))
