"""Cut: a plan becomes edits, and the edits become a smaller model."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import refuse_gated
from headwise.analysis.sites import Site, find_sites, read_record
from headwise.analysis.sites.anatomy import dissect
from headwise.analysis.sites.paths import record_path
from headwise.prune.surgery.check import check_edits
from headwise.prune.surgery.decision import Decision, decide, dense
from headwise.prune.surgery.edits import Edit
from headwise.prune.surgery.incision import incise
from headwise.prune.surgery.rehearsal import rehearse
from headwise.prune.surgery.removable import Heads, removable
from headwise.prune.surgery.replay import replay

if TYPE_CHECKING:
    from headwise.prune.plan import Plan

log = logging.getLogger("headwise")


def cut(model: nn.Module, plan: Plan | Heads, *, inputs: Mapping[str, Any] | None = None) -> nn.Module:
    """The same model without the heads that a plan removes: their weights are gone.

    The output equals that of the model with these heads gated, the projection's bias included. Names,
    dtype, device, grad and training flags stay. Everything is checked, and every edit computed, before
    the first weight changes. Heads that are gone already are left alone, with a notice.

    Parameters stay the same objects in another shape. So cut between training steps, not between a loss and its
    `backward()` (`del loss` first), and build the optimizer afterwards: the state that one keeps per parameter
    would not fit, and its next step says so.

    Args:
        model: a model that `find_sites` understands; changed in place.
        plan: a `Plan`, or site name to ORIGINAL head indices.
        inputs: keyword arguments for one forward pass. Attention of a class that headwise does not know is first
            cut on a copy, which is run with these, or else with inputs made up for it.

    Returns:
        `model`, for chaining. Its configuration now carries the record that `save` and `load` need.

    Raises:
        BadInput: for an unknown site or head, for weights that are quantised, or heads that are silenced just now.
        CannotCut: for a site whose structure allows no cut, or whose cut cannot be tried out, with the reason;
            gating it works.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> cut(model, {"0": [1, 3]}).encoder.layer[0].attention.self.query.weight.shape
    torch.Size([16, 32])
    """
    if "_orig_mod" in model._modules:  # what torch.compile returns: it sees that the weights have another shape
        cut(model.get_submodule("_orig_mod"), plan, inputs=inputs)
        return model
    refuse_gated(model, "cut")
    sites = find_sites(model)
    heads: Any = getattr(plan, "remove", plan)
    remove = removable(model, sites, heads)
    gone = {name: [head for head in sorted(listed) if head not in sites[name].kept] for name, listed in heads.items()}
    if any(gone.values()):
        log.warning("already removed, left alone: %s", {name: listed for name, listed in gone.items() if listed})
    if not remove:
        return model
    if not hasattr(model, "config"):
        inside = next((path for path, module in model.named_modules() if hasattr(module, "config")), None)
        told = "" if inside is None else f": cut the model inside it, {inside!r}; gates work from outside, too"
        raise BadInput(f"{type(model).__name__} has no configuration to carry the record of the cut{told}")
    before = decisions_of(model, sites)
    wanted_now = {name: decide(before[name], remove[name]) for name in sites if name in remove}
    edits, decisions = _edits(model, sites, wanted_now)
    # Only what survives being written down is applied, so that every cut tests what loading will do.
    edits = json.loads(json.dumps(edits))
    check_edits(model, edits)
    rehearse(
        model, sites, remove, lambda name: _edits(model, sites, {name: wanted_now[name]})[0],
        inputs=inputs,
    )  # fmt: skip
    replay(model, edits)
    record = read_record(model) or {"edits": [], "sites": {}}
    config: Any = model.config
    config.headwise = _record(model, sites, decisions, [*record["edits"], *edits])
    # transformers 4 keeps a generation cache on the model, sized for the dense heads.
    model.__dict__.pop("_cache", None)
    return model


def decisions_of(model: nn.Module, sites: Mapping[str, Site]) -> dict[str, Decision]:
    """What is left at every site, by the model's record (dense where it has none)."""
    record = read_record(model)
    if record is None:
        return {name: dense(site.heads, site.kv_heads) for name, site in sites.items()}
    return {name: read_decision(record["sites"][name]) for name in sites}


def read_decision(data: Mapping[str, Any]) -> Decision:
    """A site's decision as its record keeps it."""
    return Decision(
        data["heads"], data["kv_heads"], tuple(data["kept"]), tuple(data["kv"]), data["ghost"], data["whole"]
    )


def edits_between(model: nn.Module, sites: Mapping[str, Site], wanted: Mapping[str, Decision]) -> dict[str, Any]:
    """The record that takes a dense model straight to given decisions; the model is only read."""
    changed = {
        name: decision for name, decision in wanted.items() if decision != dense(decision.heads, decision.kv_heads)
    }
    edits, decisions = _edits(model, sites, changed)
    return _record(model, sites, decisions, edits)


def _edits(
    model: nn.Module, sites: Mapping[str, Site], wanted: Mapping[str, Decision]
) -> tuple[list[Edit], dict[str, Decision]]:
    """The edits from what is to what is wanted, and every site's decision afterwards."""
    anatomies = {anatomy.module: anatomy for anatomy in dissect(model, counted=False)}
    decisions = decisions_of(model, sites)
    edits: list[Edit] = []
    done: dict[str, Decision] = {}
    handed: set[str] = set()
    for name, then in wanted.items():
        site = sites[name]
        if site.module not in done:
            made, done[site.module] = incise(model, anatomies[site.module], site, decisions[name], then, handed)
            edits += made
        decisions[name] = done[site.module]
    for edit in edits:
        edit["module"] = record_path(model, edit["module"])
        if "from" in edit:
            edit["from"] = record_path(model, edit["from"])
    return edits, decisions


def _record(
    model: nn.Module, sites: Mapping[str, Site], decisions: Mapping[str, Decision], edits: list[Edit]
) -> dict[str, Any]:
    """What the configuration of a cut model says: the decisions, which are the truth, and their edits."""
    from importlib.metadata import version

    kept = {}
    for name, site in sites.items():
        decision = decisions[name]
        kept[name] = {
            "module": record_path(model, site.module), "output": record_path(model, site.output),
            "heads": site.heads, "kv_heads": site.kv_heads, "head_dim": site.head_dim, "kind": site.kind,
            "stack": site.stack, "layer": site.layer, "call": site.call, "calls": site.calls, "window": site.window,
            "refusal": site.refusal, "kept": list(decision.kept), "kv": list(decision.kv),
            "ghost": decision.ghost, "whole": decision.whole,
        }  # fmt: skip
    return {
        "schema": 1, "headwise": version("headwise"), "transformers": version("transformers"),
        "class": type(model).__name__, "sites": kept, "edits": edits,
    }  # fmt: skip
