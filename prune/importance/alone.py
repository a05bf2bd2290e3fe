"""Alone: what each head costs by itself, column by column, on texts drawn again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from headwise.analysis.sites import Site
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import spread


def cost_alone(model: Any, sites: Mapping[str, Site], contexts: Any, slopes: Any, scaled: bool = False) -> Resampled:
    """How the diagonal of the cost after repair depends on the texts.

    The full cost needs all products of columns, too many to keep by part of the texts. Its diagonal does not: a
    head's cost is taken as sum_j var(c_j) q_j over its columns j, with q_j the squared loss gradient at column j
    (the squared weights, where no gradient weighs). What other heads could make up for is left out on both sides of
    the comparison.

    Args:
        model: where the projections are.
        sites: its sites.
        contexts: `Collected` with the columns' sums.
        slopes: `Collected` with the gradients' sums, or None.
        scaled: whether the costs of each site are scaled to what its gates' gradients say, texts drawn again, too.
    """
    from headwise.analysis.sites.projections import output_bias, output_weight

    worth, centred = {}, {}
    for name, site in sites.items():
        weight = output_weight(model, site).double().cpu().numpy()
        worth[name], centred[name] = np.square(weight).sum(0), output_bias(model, site) is not None
    values = partial(_values, sites, contexts, slopes, worth, centred, scaled)
    how = "texts drawn again; of each head alone, column by column, before other heads make up for it"
    return Resampled(how, contexts.texts, values, values())


def _values(
    sites: Mapping[str, Site],
    contexts: Any,
    slopes: Any,
    worth: Mapping[str, np.ndarray],
    centred: Mapping[str, bool],
    scaled: bool,
    weights: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    found = {}
    for name, site in sites.items():
        columns = contexts.columns[name].squares(centred[name], weights)
        if slopes is None:
            size = float(np.sum(columns * worth[name]))
            price = columns * worth[name] / (size if size > 0 else 1.0)
        else:
            gates = slopes.gates[name].total(weights)
            price = columns * gates.pulls / slopes.count(weights)
            if scaled:
                heads = len(site.kept)
                alone = contexts.columns[name].squares(False, weights) * gates.pulls
                sums = float(np.sum(alone[: heads * site.head_dim]))
                price *= float(np.trace(gates.outer[:heads, :heads])) / sums if sums > 0 else 1.0
        found[name] = spread(site, price.reshape(-1, site.head_dim).sum(1)[: len(site.kept)])
    return found
