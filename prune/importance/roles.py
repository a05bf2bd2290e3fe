"""Roles: heads that surely do something known stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.known import from_evidence
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores, spread


class Roles(BaseModel):
    """The largest lower bound, over roles, of how far a head exceeds chance; 0 where it plays none surely.

    >>> Roles(roles=("previous",)).roles
    ('previous',)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["roles"] = "roles"
    roles: tuple[str, ...] = Field(
        default=(),
        description="the roles that count; all that the evidence knows, but those of heads that do nothing (dormant), if empty",
    )

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score` beyond the analysis: none."""

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, and the role that gives it as a note.

        Raises:
            BadInput: the evidence knows no such role, or is of another model.
        """
        from headwise.analysis.errors import BadInput
        from headwise.analysis.roles import ROLES

        arrays = getattr(calibration.evidence, "arrays", {})
        known = sorted({name.split("/")[1] for name in arrays if name.startswith("roles/") and name.endswith("/low")})
        # That a head hands on nothing is no reason to keep it; roles of the user's own are.
        chosen = self.roles or tuple(role for role in known if role not in ROLES or ROLES[role].active)
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
        return Scores(self.kind, values, notes=notes, resampled=_resampled(calibration, bounds))


def _resampled(calibration: Calibration, bounds: Mapping[str, Mapping[str, np.ndarray]]) -> Resampled:
    """Lower bounds of excess on texts drawn again; roles with texts of their own (annotated, random) stay as measured."""
    arrays, sites = calibration.evidence.arrays, calibration.sites
    tables = {role: arrays[f"parts/role/{role}"].astype(float) for role in bounds if f"parts/role/{role}" in arrays}
    if not tables:
        return Resampled("the evidence keeps no sums of these roles by part of the texts")
    place = {(name, int(head)): index for index, (name, head) in enumerate(calibration.evidence.heads)}

    def anew(weights: np.ndarray) -> dict[str, np.ndarray]:
        drawn = {role: lower_bound(table, weights) for role, table in tables.items()}
        found = {}
        for name, site in sites.items():
            rows = [place[name, head] for head in site.kept]
            each = [drawn[role][rows] if role in drawn else bounds[role][name][list(site.kept)] for role in bounds]
            found[name] = spread(site, np.maximum(np.nan_to_num(np.stack(each)).max(0), 0.0))
        return found

    texts = np.max([table[..., 1].max(0) for table in tables.values()], axis=0)
    fixed = [role for role in bounds if role not in tables]
    how = "texts drawn again, bounds by the spread of their parts"
    how += f"; {', '.join(fixed)} as measured on texts of their own" if fixed else ""
    return Resampled(how, texts, anew, anew(np.ones(len(texts))))


def lower_bound(sums: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Lower end of the 95 % interval of a ratio of sums over parts, by its linear spread, [head]; NaN where unknown.

    With r = sum e / sum n its standard error is sqrt(sum (e - r n)^2) / sum n (Cochran, 1977).

    Args:
        sums: e and n of every head by part, [head, part, 2].
        weights: how often each part counts, [part].

    >>> even = np.stack([np.full((1, 8), 2.0), np.full((1, 8), 4.0)], axis=-1)
    >>> lower_bound(even, np.ones(8))
    array([0.5])
    """
    excess, rows = sums[..., 0], sums[..., 1]
    there = ((rows > 0) & (weights > 0)).sum(1)
    total = rows @ weights
    known = (there > 1) & (total > 0)
    ratio = np.divide(excess @ weights, total, out=np.full(len(sums), np.nan), where=known)
    off = np.square(excess - ratio[:, None] * rows) @ weights * np.divide(there, there - 1, where=known, out=total * 0)
    return np.asarray(ratio - 1.96 * np.sqrt(off) / np.where(known, total, np.nan))
