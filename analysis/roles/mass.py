"""Attention mass on the keys of each relation, against the share that chance would put there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.inference.cells import CELLS, add_by_cell, cells_of
from headwise.analysis.roles.assignment import Measured, inferred
from headwise.analysis.roles.relation import Role, view_of
from headwise.analysis.sites import Site


class RelationMass(Reducer):
    """Per head and role: mass on the relation's keys, its chance level and the number of rows, by cell of texts.

    Chance is the relation's share of the keys that the row could attend to: what a uniform head puts there,
    exactly. Rows with no key in the relation, or with no key outside it, leave no choice and do not count.

    Args:
        sites: the sites.
        roles: those with a relation; others are ignored.
    """

    needs = frozenset({"maps"})
    totals = ("mass", "chance", "rows")

    def __init__(self, sites: Mapping[str, Site], roles: Mapping[str, Role]) -> None:
        self.roles = {name: role for name, role in roles.items() if role.relation is not None}
        self._at = positions_of(sites)
        shape = (CELLS, sum(site.heads for site in sites.values()), len(self.roles))
        self.mass = torch.zeros(shape, dtype=torch.float64)
        self.chance = torch.zeros(shape, dtype=torch.float64)
        self.rows = torch.zeros(shape, dtype=torch.float64)
        self._weights = torch.empty(0)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        if not self.roles:
            return
        found = torch.zeros(3, len(batch.texts), *self.mass.shape[1:], dtype=torch.float64)
        # Sites with the same rule share the tensor that states it, and so all of them are measured with one product.
        alike: dict[Any, list[str]] = {}
        for name, one in seen.items():
            if len(self._at[name]):
                alike.setdefault((id(one.allowed), one.site.kind, one.grid), []).append(name)
        for names in alike.values():
            which, weights, chance, rows = self._relations(seen[names[0]], batch)
            at = torch.from_numpy(np.concatenate([self._at[name] for name in names]))
            # Each map is read once for all roles.
            masses = torch.cat([torch.bmm(seen[name].map.flatten(2), weights) for name in names], dim=1)
            place = at[:, None], which[None]
            found[0][:, *place] = masses.cpu().double()
            found[1][:, *place], found[2][:, *place] = chance[:, None], rows[:, None]
        cells = cells_of(batch.texts)
        for total, values in zip((self.mass, self.chance, self.rows), found, strict=True):
            add_by_cell(total, cells, values)

    def _relations(self, one: Seen, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Which roles make sense here; their weights `[batch, query·key, role]`, summed chance and counted rows.

        The weights stand in space that the next call uses anew.
        """
        view = view_of(one, batch.tokens)
        said = [role.relation(view) if role.relation is not None else None for role in self.roles.values()]
        which = [i for i, chosen in enumerate(said) if chosen is not None]
        weights = self._space((len(batch.texts), len(which), *one.allowed.shape[1:]), one.allowed.device)
        for i, chosen in enumerate(chosen for chosen in said if chosen is not None):
            weights[:, i] = chosen & one.allowed
        count = weights.sum(-1)
        open_rows = (count > 0) & (count < one.choices[:, None])
        # Rows without a key in the relation are 0 already.
        if bool(((count > 0) & ~open_rows).any()):
            weights *= open_rows[..., None]
        chance = torch.where(open_rows, count / one.choices.clamp(min=1)[:, None], 0.0).sum(2)
        flat, counted = weights.flatten(2).transpose(1, 2), open_rows.sum(2)
        return torch.tensor(which, dtype=torch.long), flat, chance.cpu().double(), counted.cpu().double()

    def _space(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        needed = math.prod(shape)
        if self._weights.numel() < needed or self._weights.device != device:
            self._weights = torch.empty(needed, device=device)
        return self._weights[:needed].view(shape)

    def measured(self, role: str) -> Measured:
        """Sums by cell of one role, ready for inference."""
        i = list(self.roles).index(role)
        mass, chance, rows = (part[:, :, i].numpy() for part in (self.mass, self.chance, self.rows))
        return Measured(mass, chance, mass - chance, rows)

    def result(self) -> dict[str, np.ndarray]:
        """`roles/<role>/score`, `chance` and all else that `inferred` gives, for every role, `[head]`."""
        return {
            f"roles/{role}/{part}": values
            for role in self.roles
            for part, values in inferred(self.measured(role)).items()
        }
