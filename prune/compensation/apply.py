"""Apply: work out every site's new projection, then write them all, and say what it brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import Calibration
from headwise.prune.selection.blocks import Block, blocks_of

#: From weight, moments of the fitting texts, removed columns, "has a bias" and a head's width: new weight and what
#: the bias gains.
Rule = Callable[[np.ndarray, Any, np.ndarray, bool, int], tuple[np.ndarray, np.ndarray]]


def apply(
    calibration: Calibration, remove: Mapping[str, Sequence[int]], rule: Rule, weight: str, loss: str = "labels"
) -> dict[str, Any]:
    """Repair the output projection of every site that loses heads, in place, before the cut.

    Only columns of heads that stay, and the bias, are written, and only where something was lost. All new
    weights are worked out before the first is written.

    Args:
        calibration: model, sites and texts; the model changes.
        remove: original indices by site; heads that are gone already are passed over.
        rule: what to do with one projection.
        weight: `gradient` or `none`, how tokens count in the moments.
        loss: `labels` or `outputs`, whose gradient.

    Returns:
        `weight`, `measured_on` (texts that took no part in the fit, or the same texts if there are too few)
        and `sites`: per site the relative error of the block's output before and after.
    """
    lost = lost_of(calibration.sites, remove)
    if not lost:
        return {"weight": weight, "measured_on": "nothing", "sites": {}}
    found = calibration.moments(weight, loss)
    fitted = {}
    measured_on = "held-out"
    for block, heads in lost.items():
        fit = reduce(add, [found.fit[site.name] for site in block.sites])
        held = reduce(add, [found.held[site.name] for site in block.sites])
        if not float(fit.weight) or not float(held.weight):
            fit = held = fit + held
            measured_on = "fit"
        fitted[block] = _fit(calibration.model, block.sites[0], heads, rule, fit, held)
    report = {}
    for block, (new, moved, errors) in fitted.items():
        _write(calibration.model, block.sites[0], lost[block], new, moved)
        report.update({site.name: errors for site in block.sites})
    ordered = {name: report[name] for name in calibration.sites if name in report}
    return {"weight": weight, "measured_on": measured_on, "sites": ordered}


def lost_of(sites: Mapping[str, Site], remove: Mapping[str, Sequence[int]]) -> dict[Block, list[int]]:
    """The heads that a removal takes from each block, those that are gone already left out; no empty entries.

    >>> lost_of({"0": Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1))}, {}), lost_of({}, {})
    ({}, {})
    """
    found = {
        block: [head for head in remove.get(block.name, ()) if head in block.kept]
        for block in blocks_of(sites).values()
    }
    return {block: heads for block, heads in found.items() if heads}


def _fit(
    model: Any, site: Site, heads: list[int], rule: Rule, fit: Any, held: Any
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    from headwise.analysis.sites.projections import output_bias, output_weight
    from headwise.prune.compensation.repair import relative_error, squared, unrepaired

    weight = output_weight(model, site).double().cpu().numpy()
    gone = columns_of(site, heads)
    new, moved = rule(weight, fit, gone, output_bias(model, site) is not None, site.head_dim)
    second, mean = held.matrix(centred=False), held.mean()
    size = squared(weight, second)
    before = unrepaired(weight, gone, second, size)
    after = relative_error(weight, new, gone, moved, second, mean, size)
    return new, moved, {"error_before": before, "error_after": after}


def _write(model: Any, site: Site, heads: list[int], new: np.ndarray, moved: np.ndarray) -> None:
    import torch

    from headwise.analysis.sites.projections import output_bias, output_weight

    kept = torch.from_numpy(np.setdiff1d(np.arange(new.shape[1]), columns_of(site, heads)))
    weight, bias = output_weight(model, site), output_bias(model, site)
    with torch.no_grad():
        kept = kept.to(weight.device)
        weight[:, kept] = torch.from_numpy(new).to(weight)[:, kept]
        if bias is not None:
            bias += torch.from_numpy(moved).to(bias)


def columns_of(site: Site, heads: Sequence[int]) -> np.ndarray:
    """Where the contexts of some heads are at the projection's input, by their place among the heads that exist.

    >>> columns_of(Site("0", "attn", "attn.o", 3, 3, 2, kept=(0, 2)), [2])
    array([2, 3])
    """
    places = np.array([site.kept.index(head) for head in heads], dtype=int)
    return (places[:, None] * site.head_dim + np.arange(site.head_dim)).ravel()
