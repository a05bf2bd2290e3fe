"""Fresh records: the edits of a checkpoint made elsewhere, worked out again for this transformers release."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites


def fresh_record(
    stock: Any, config: Any, record: Mapping[str, Any] | None, pruned_by_4: Mapping[Any, Any] | None
) -> dict[str, Any]:
    """The record to open a checkpoint by.

    Edits are tied to module paths, which move between releases. A record from this release is used as it
    is; one from another is worked out again from its decisions; `pruned_heads` of transformers 4 is turned
    into a record.

    Args:
        stock: the class that will be opened.
        config: the checkpoint's configuration.
        record: what headwise wrote into it, if it did.
        pruned_by_4: the `pruned_heads` that transformers 4 wrote: layer (a string) to heads.

    Raises:
        BadInput: if the record is damaged or speaks of sites that this class does not have.
    """
    if record is not None:
        _check(record)
        if record.get("transformers") == transformers.__version__:
            return dict(record)
    from headwise.prune.surgery import cut, edits_between, read_decision

    model = _dense_on_meta(stock, config)
    sites = find_sites(model)
    if record is None:
        return _fresh(cut(model, _heads_of_4(sites, pruned_by_4 or {})))
    wanted = {name: read_decision(data) for name, data in record["sites"].items() if name in sites}
    if not wanted:
        raise BadInput(
            f"the checkpoint's record names sites {list(record['sites'])[:6]}, {stock.__name__} has {list(sites)[:6]}"
        )
    biased = [name for name, data in record["sites"].items() if data.get("bias")]
    return edits_between(model, sites, wanted, biased)


def _dense_on_meta(stock: Any, config: Any) -> Any:
    dense = copy.deepcopy(config)
    dense.headwise = None
    with torch.device("meta"):
        if hasattr(stock, "_from_config"):
            return stock._from_config(dense)
        return stock.from_config(dense)


def _fresh(model: Any) -> dict[str, Any]:
    return dict(model.config.headwise)


def _heads_of_4(sites: Mapping[str, Any], pruned: Mapping[Any, Any]) -> dict[str, list[int]]:
    by_layer = {site.layer: name for name, site in sites.items() if site.kind == "self"}
    heads: dict[str, list[int]] = {}
    for layer, listed in pruned.items():
        if int(layer) not in by_layer:
            raise BadInput(f"pruned_heads names layer {layer}, the model has layers {sorted(by_layer)}")
        heads[by_layer[int(layer)]] = sorted(int(head) for head in listed)
    return heads


def _check(record: Mapping[str, Any]) -> None:
    if record.get("schema") != 1:
        raise BadInput(f"the checkpoint's record has schema {record.get('schema')!r}; this headwise reads schema 1")
    for name, data in record.get("sites", {}).items():
        heads, kept = data.get("heads"), data.get("kept")
        if not isinstance(heads, int) or not isinstance(kept, list) or any(not 0 <= h < heads for h in kept):
            raise BadInput(f"the checkpoint's record of site {name} is damaged: heads {heads!r}, kept {kept!r}")
