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
    return edits_between(model, sites, wanted)


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
        # Its keys are texts in config.json, and numbers once transformers 4 has read them.
        number = int(layer) if str(layer).isdigit() else -1
        if number not in by_layer:
            raise BadInput(f"pruned_heads names layer {layer!r}, the model has layers {sorted(by_layer)}")
        if not isinstance(listed, (list, tuple, set)) or not all(_whole_number(head, 0) for head in listed):
            raise BadInput(f"pruned_heads of layer {layer}: got {listed!r:.60}, expected a list of heads")
        heads[by_layer[number]] = sorted(listed)
    return heads


def _check(record: Any) -> None:
    """Refuse a record whose decisions are damaged; its edits are held against the shapes when the model is built."""
    if not isinstance(record, Mapping) or record.get("schema") != 1:
        got = record.get("schema") if isinstance(record, Mapping) else record
        raise BadInput(f"the checkpoint's record has schema {got!r:.60}; this headwise reads schema 1")
    sites, edits = record.get("sites"), record.get("edits")
    if not isinstance(sites, Mapping) or not sites or not isinstance(edits, list):
        raise BadInput("the checkpoint's record is damaged: it needs a mapping `sites` and a list `edits`")
    ours = record.get("transformers") == transformers.__version__
    for name, data in sites.items():
        # The edits of another release are not applied.
        wrong = _wrong(data) or (_contradicted(data, edits) if ours else "")
        if wrong:
            raise BadInput(f"the checkpoint's record of site {name} is damaged: {wrong}")


def _wrong(data: Any) -> str:
    """What is wrong with one site's entry, or ``."""
    if not isinstance(data, Mapping):
        return f"{data!r:.60} is no mapping"
    for key in ("module", "output", "kind", "stack", "refusal"):
        if not isinstance(data.get(key), str):
            return f"{key} is {data.get(key)!r:.60}, expected a text"
    for key, least in (("heads", 1), ("kv_heads", 1), ("head_dim", 1), ("calls", 1), ("layer", 0), ("call", 0)):
        if not _whole_number(data.get(key), least):
            return f"{key} is {data.get(key)!r:.60}, expected a number from {least}"
    heads, kv_heads = data["heads"], data["kv_heads"]
    for key, count in (("kept", heads), ("kv", kv_heads)):
        listed = data.get(key)
        if not isinstance(listed, list) or not all(_whole_number(h, 0) and h < count for h in listed):
            return f"{key} is {listed!r:.60}, expected numbers below {count}"
    ghost = data.get("ghost")
    if len(set(data["kept"])) < len(data["kept"]) or not data["kv"] or heads % kv_heads:
        return f"heads {heads}, kv_heads {kv_heads}, kept {data['kept']} and kv {data['kv']} do not go together"
    if ghost is not None and not (_whole_number(ghost, 0) and ghost < heads):
        return f"ghost is {ghost!r:.60}, expected a head below {heads}"
    return "" if isinstance(data.get("whole"), bool) else f"whole is {data.get('whole')!r:.60}, expected true or false"


def _contradicted(data: Mapping[str, Any], edits: list[Any]) -> str:
    """What the edits leave of a site's output projection, if it is not what its entry says, or ``."""
    path, _, bare = data["output"].partition(":")
    width = 1 if bare else data["head_dim"]
    entries = list(range(data["heads"] * width))
    of_output = [edit for edit in edits if isinstance(edit, Mapping) and edit.get("edit") == "take"
                 and (edit.get("module"), edit.get("tensor")) == (path, bare or "weight")]  # fmt: skip
    for edit in of_output:
        if _runs(edit.get("runs")):
            entries = [entry for start, stop in edit["runs"] for entry in entries[start:stop]]
    left = data["kept"] if data["ghost"] is None else [data["ghost"]]
    if entries == [head * width + column for head in left for column in range(width)]:
        return ""
    return f"it says that heads {data['kept']} are left, its edits leave others"


def _runs(value: Any) -> bool:
    """Whether these are runs; what else is wrong with an edit is told when it is held against the shapes."""
    return isinstance(value, list) and all(
        isinstance(run, list) and len(run) == 2 and all(_whole_number(end, 0) for end in run) for run in value
    )


def _whole_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
