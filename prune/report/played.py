"""What heads do: every role with the heads that play it and the evidence for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.prune.report.document import Evidence, Head, Role
from headwise.prune.report.folder import Folder
from headwise.prune.report.heads import finite, role_names

_NUMBERS = ("score", "chance", "excess", "low", "high", "p", "q", "n")


def roles_in(folder: Folder, heads: Sequence[Head]) -> tuple[Role, ...]:
    """Every role that was looked for, also those that no head plays; the most played first."""
    roles = [_role(folder, heads, name) for name in role_names(folder)]
    return tuple(sorted(roles, key=lambda role: (-role.heads, role.name)))


def _role(folder: Folder, heads: Sequence[Head], name: str) -> Role:
    arrays = {part: folder.array(f"roles/{name}/{part}") for part in _NUMBERS}
    score, chance = arrays["score"], arrays["chance"]
    if score is None:
        raise KeyError(f"roles/{name}/score")
    excess = arrays["excess"]
    if excess is None:
        excess = score - (0.0 if chance is None else chance)
    arrays["excess"] = excess
    strength = np.nan_to_num(excess, nan=-np.inf)
    assigned = folder.arrays.get(f"roles/{name}/assigned")
    playing = np.flatnonzero(assigned) if assigned is not None else np.array([], dtype=int)
    playing = playing[np.argsort(-strength[playing], kind="stable")]
    best = int(strength.argmax()) if len(strength) and np.isfinite(strength.max()) else None
    return Role(
        name=name,
        heads=len(playing),
        kept=sum(heads[i].kept for i in playing.tolist()),
        strongest=None if best is None else _evidence(heads[best], best, arrays),
        rows=tuple(_evidence(heads[i], i, arrays) for i in playing.tolist()),
    )


def _evidence(head: Head, i: int, arrays: dict[str, np.ndarray | None]) -> Evidence:
    numbers = {part: None if array is None else finite(array[i]) for part, array in arrays.items()}
    return Evidence(label=head.label, kept=head.kept, **numbers)
