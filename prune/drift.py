"""Drift: what the heads that stayed do before and after the cut, on the same texts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.analyze import analyze
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.evidence import Evidence
from headwise.analysis.roles import ROLES
from headwise.analysis.sites import find_sites

#: Texts that both models are looked at with; roles of the whole analysis may rest on more.
TEXTS = 64
#: Roles that are found in one pass over ordinary texts; the others need texts of their own, and are looked for again
#: only where heads were kept for them.
_APART = ("induction", "duplicate-token", "coreference")
LOOKED_FOR = tuple(role for role in ROLES if role not in _APART)
SHOWN = ("entropy", "distance", "confidence", "first", "special", "punctuation", "context_norm")


def head_drift(
    dense: nn.Module,
    cut: nn.Module,
    tokenizer: Any,
    corpus: Corpus,
    *,
    also: Collection[str] = (),
    batch_size: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Roles and statistics of the kept heads in the dense and in the cut model: plain data, as `drift.json` keeps it.

    Both models are looked at with the same few texts, so that a role that comes or goes is the cut's doing and
    not that of other texts. A head may gain or lose a role by a hair: the excess over chance stands beside it.

    Args:
        dense: the model before.
        cut: the model after.
        tokenizer: of both.
        corpus: texts, of which at most `TEXTS` are taken.
        also: roles beyond `LOOKED_FOR`: those that a keep-rule keeps heads for.
        batch_size: texts a batch at most.
        max_length: the most tokens a text.
        seed: of the draw and of the tests.

    Returns:
        `texts`, `heads` (kept), `looked_for`; `roles` (role to how many kept heads play it before and after),
        `changed` (head, its roles before and after, and excess before and after of those that differ), and
        `statistics` (mean over the kept heads before and after, the mean size of the change, and the head that
        changed most).
    """
    texts = corpus.sample(TEXTS, seed)
    looked_for = tuple(role for role in ROLES if role in LOOKED_FOR or role in also)
    before, after = (
        analyze(
            model, tokenizer, texts, measures=(), roles=looked_for, batch_size=batch_size, max_length=max_length,
            seed=seed,
        )
        for model in (dense, cut)
    )  # fmt: skip
    left = {(name, head) for name, site in find_sites(cut).items() for head in site.kept}
    kept = np.array([head in left for head in before.heads], dtype=bool)
    roles = {role: _both(before, after, f"roles/{role}/assigned", kept) for role in looked_for}
    counts = {role: {"before": int(b.sum()), "after": int(a.sum())} for role, (b, a) in roles.items()}
    return {
        "schema": 1,
        "texts": len(texts),
        "heads": int(kept.sum()),
        "looked_for": list(looked_for),
        "roles": {role: count for role, count in counts.items() if count["before"] or count["after"]},
        "changed": _changed(before, after, kept),
        "statistics": {name: moved for name in SHOWN if (moved := _moved(before, after, name, kept))},
    }


def _both(before: Evidence, after: Evidence, name: str, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nothing = np.zeros(len(kept))
    first, second = (np.asarray(found.arrays.get(name, nothing))[kept] for found in (before, after))
    return first, second


def _changed(before: Evidence, after: Evidence, kept: np.ndarray) -> list[dict[str, Any]]:
    """Heads whose roles differ, in the order of the model."""
    found = []
    first, second = before.roles(), after.roles()
    for i in np.flatnonzero(kept).tolist():
        differ = sorted(set(first[i]) ^ set(second[i]))
        if differ:
            excess = {
                role: [float(one.arrays[f"roles/{role}/excess"][i]) for one in (before, after)] for role in differ
            }
            found.append(
                {"head": before.labels()[i], "before": first[i], "after": second[i], "excess": excess}
            )  # fmt: skip
    return found


def _moved(before: Evidence, after: Evidence, name: str, kept: np.ndarray) -> dict[str, Any] | None:
    """How a statistic of the kept heads moved; None where no head has it."""
    first, second = (values.astype(np.float64) for values in _both(before, after, f"statistics/{name}", kept))
    known = np.isfinite(first) & np.isfinite(second)
    if not known.any():
        return None
    labels = [label for label, there in zip(before.labels(), kept, strict=True) if there]
    size = np.where(known, np.abs(second - first), -1.0)
    most = int(size.argmax())
    return {
        "before": float(first[known].mean()),
        "after": float(second[known].mean()),
        "moved": float(size[known].mean()),
        "most": {"head": labels[most], "before": float(first[most]), "after": float(second[most])},
    }
