"""Whether heads of one model type are cut exactly: the verdict on it, held against the oracle."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any

import alone
import torch
from oracle import apart, oracle, run
from tiny import OVERRIDES, build, model_classes, tiny_configs
from transformers import CONFIG_MAPPING, PreTrainedModel

from headwise.analysis.errors import BadInput, CannotCut, UnknownModel
from headwise.analysis.gates import gated, never_called
from headwise.analysis.gates.block_inputs import block_inputs
from headwise.analysis.gates.synthetic import synthetic_inputs
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.anatomy import attention_like
from headwise.prune.surgery import cut

# A wrong slice shows as 1e-2 or more; some forwards compute a part in float32 whatever the weights are.
LIMIT, LIMIT_OF_FLOATS = 1e-6, 1e-4


def judge(name: str, until: float) -> dict[str, Any]:
    """One model type's verdict and why, found before the processor has run `until`, or soon after."""
    cls = CONFIG_MAPPING[name]
    try:
        classes = model_classes(cls)
    except ImportError as error:
        return {"verdict": "no model class", "why": short(error)}
    if not classes:
        return {"verdict": "no model class", "why": "this configuration belongs to no model class of its own"}
    met: list[str] = []
    parts: list[Any] = []
    found = _whole(cls, OVERRIDES.get(name, {}), classes[:4], met, parts, until)
    if found.get("verdict") not in ("exact", "refused", "WRONG", "FAILED"):
        found = _towers(parts[1:]) or (_alone(parts[0]) if parts else {}) or found
    if not found and not _has_attention(classes):
        return {"verdict": "no attention", "why": "no attention module"}
    return found or {"verdict": "not buildable", "why": " / ".join(dict.fromkeys(met))[-700:]}


def short(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:420]}"


def _whole(
    cls: Any, overrides: dict[str, Any], classes: list[Any], met: list[str], parts: list[Any], until: float
) -> dict[str, Any]:  # fmt: skip
    """The verdict of the first class and configuration that give one in time; else what was found besides, or nothing."""
    best: dict[str, Any] = {}
    try:
        for config in tiny_configs(cls, overrides):
            for model_class in classes:
                found = _one(model_class, config, met, parts)
                if found.get("verdict") in ("exact", "refused", "WRONG", "FAILED"):
                    return found
                best = best or found
                if time.process_time() > until and parts:
                    return best  # the rest of the time is for its parts
    except Exception as error:
        met.append(short(error))  # no configuration could be made at all
    return best


def _one(model_class: Any, config: Any, met: list[str], parts: list[Any]) -> dict[str, Any]:
    """One class with one configuration: its verdict, or nothing and a line in `met`."""
    try:
        model = build(model_class, copy.deepcopy(config))
    except Exception as error:
        met.append(f"{model_class.__name__}: {short(error)}")
        return {}
    _eager_experts(model)
    try:
        find_sites(model)
    except UnknownModel as error:
        if not attention_like(model):
            return {"verdict": "no attention", "why": "no attention module", "class": model_class.__name__}
        told = str(error).split("found: ")[-1].split(". A site needs")[0]
        return {"verdict": "refused", "why": f"not understood: {told[:260]}", "class": model_class.__name__}
    except BadInput as error:
        return {"verdict": "refused", "why": str(error)[:260], "class": model_class.__name__}
    large = sum(parameter.numel() for parameter in model.parameters()) > 60_000_000
    for dtype in (torch.float32,) if large else (torch.float64, torch.float32):
        # Some forwards compute a part in float32 and stumble over float64 weights.
        model.to(dtype)
        try:
            inputs = synthetic_inputs(model)
        except BadInput as error:
            met.append(short(error).partition("no synthetic input fits its forward ")[2][:330])
            continue
        found = _measure(model, inputs) | {"class": model_class.__name__}
        if found["verdict"] != "not reached":
            return found
        parts[:] = [m.double() for m in model.modules() if isinstance(m, PreTrainedModel)]
        return found
    if not parts:
        parts += [m.double() for m in model.modules() if isinstance(m, PreTrainedModel)]
    return {}


def _towers(parts: list[Any]) -> dict[str, Any]:
    """A verdict from the parts of a model that run alone, where nothing runs the whole."""
    found: list[dict[str, Any]] = []
    for part in parts:
        with contextlib.suppress(BadInput):
            verdict = _measure(part, synthetic_inputs(part))
            if verdict["verdict"] != "not reached":
                found.append(verdict | {"class": type(part).__name__, "part": True})
    rank = ("WRONG", "FAILED", "exact", "refused")
    found.sort(key=lambda row: rank.index(row["verdict"]))
    if not found:
        return {}
    refused = next((row["why"] for row in found if row["verdict"] == "refused"), "")
    return found[0] | ({"partly": refused} if refused and found[0]["verdict"] == "exact" else {})


def _alone(model: Any) -> dict[str, Any]:
    """A verdict from the blocks of a model, called one by one; nothing where one of them cannot be called."""
    found = alone.blocks(model)
    measured: list[float] = []
    refused = ""
    for site, anatomy in found.values():
        if site.refusal:
            refused = site.refusal
            continue
        inputs = block_inputs(model, site, anatomy)
        if inputs is None:
            return {}
        try:
            want, gate, got = alone.measure(model, site, inputs)
        except CannotCut as error:
            refused = str(error)[:260]
            continue
        except Exception as error:  # the row says so
            return {"verdict": "FAILED", "why": f"a block alone: {short(error)}", "alone": True}
        measured.append(max(apart(want, gate), apart(want, got)))
    worst = max(measured, default=0.0)
    if worst > LIMIT:
        return {"verdict": "WRONG", "why": f"a block alone differs from the oracle by {worst:.1e}", "alone": True}
    told = {"kinds": sorted(found), "class": type(model).__name__, "alone": True, "difference": worst}
    if refused and not measured:
        return told | {"verdict": "refused", "why": refused}
    return told | {"verdict": "exact", "why": "", **({"partly": refused} if refused else {})} if found else {}


def _has_attention(classes: list[Any]) -> bool:
    """Whether the class, at its full size and without weights, owns attention; yes, if it cannot even be built so."""
    try:
        with torch.device("meta"):
            return bool(attention_like(classes[0](classes[0].config_class())))
    except Exception:
        return True


class Verdict(Exception):
    """A verdict that ends the measuring of one model."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(why)
        self.row = {"verdict": verdict, "why": why}


def _measure(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one model that runs with these inputs."""
    sites = find_sites(model)
    reached = _reached(model, sites, inputs)
    kinds = sorted({type(model.get_submodule(site.module)).__name__ for site in sites.values()})
    told: dict[str, Any] = {
        "sites": len(sites), "reached": len(reached), "missed": _missed(model, sites), "kinds": kinds
    }  # fmt: skip
    if not reached:
        return told | {"verdict": "not reached", "why": "the inputs pass through no site"}
    dense = run(model, inputs)
    limit = LIMIT if next(model.parameters()).dtype == torch.float64 else LIMIT_OF_FLOATS
    refused = {name: site.refusal for name, site in sites.items() if site.refusal}
    worst = 0.0
    try:
        for plan in _plans(sites, reached):
            _check_gate(model, sites, plan, inputs, dense, limit)
            cuttable = {name: heads for name, heads in plan.items() if name not in refused}
            if cuttable:
                worst = max(worst, _check_cut(model, sites, cuttable, inputs, limit))
    except Verdict as found:
        return told | found.row
    if len(refused) == len(sites):
        return told | {"verdict": "refused", "why": next(iter(refused.values()))}
    partly = {"partly": next(iter(refused.values()))} if refused else {}
    return told | {"verdict": "exact", "why": "", "difference": worst} | partly


def _check_gate(
    model: Any,
    sites: dict[str, Any],
    plan: dict[str, list[int]],
    inputs: dict[str, Any],
    dense: torch.Tensor,
    limit: float,
) -> None:
    want = run(oracle(model, sites, plan), inputs)
    if apart(want, dense) == 0:
        raise Verdict("not reached", "removing heads does not change the output")
    with gated(model, plan):
        gate = apart(want, run(model, inputs))
    if gate > limit:
        raise Verdict("WRONG", f"gate differs from the oracle by {gate:.1e} ({plan})")
    if apart(dense, run(model, inputs)) > 0:
        raise Verdict("WRONG", "the gate did not give the model back")


def _check_cut(
    model: Any, sites: dict[str, Any], plan: dict[str, list[int]], inputs: dict[str, Any], limit: float
) -> float:
    smaller = copy.deepcopy(model)
    before = {name: tensor.clone() for name, tensor in smaller.state_dict().items()}
    try:
        cut(smaller, plan)
    except CannotCut as error:
        after = smaller.state_dict()
        if before.keys() != after.keys() or any(not torch.equal(t, after[n]) for n, t in before.items()):
            raise Verdict("WRONG", f"refused after it had changed the model: {error}") from error
        raise Verdict("refused", str(error)[:260]) from error
    except Exception as error:
        raise Verdict("FAILED", f"cut: {short(error)}") from error
    try:
        got = run(smaller, inputs)
    except Exception as error:
        raise Verdict("FAILED", f"after the cut: {short(error)} ({plan})") from error
    difference = apart(run(oracle(model, sites, plan), inputs), got)
    if difference > limit:
        raise Verdict("WRONG", f"cut differs from the oracle by {difference:.1e} ({plan})")
    return difference


def _plans(sites: dict[str, Any], reached: set[str]) -> list[dict[str, list[int]]]:
    """One plan with another set at every site, one that empties the first site."""
    by_module: dict[str, list[str]] = {}
    for name, site in sites.items():
        if name in reached:
            by_module.setdefault(site.module, []).append(name)
    cycle = ([0], [1, 3], [2], [0, 1, 2], [3], [0, 2])
    uneven: dict[str, list[int]] = {}
    for index, (_, names) in enumerate(by_module.items()):
        heads = sites[names[0]].heads
        if heads > 1:
            some = sorted({h % heads for h in cycle[index % 6]}) if heads > 2 else [index % heads]
            uneven |= dict.fromkeys(names, some)
    first = next(iter(by_module.values()))
    emptied = {**uneven, **{name: list(range(sites[name].heads)) for name in first}}
    return [plan for plan in (uneven, emptied) if plan]


def _reached(model: Any, sites: dict[str, Any], inputs: dict[str, Any]) -> set[str]:
    """Sites whose output projection (or whose module, where that is never called) runs."""
    ran: set[str] = set()
    handles = []
    for site in sites.values():
        path = site.module if never_called(model, site) else site.output
        handles.append(
            model.get_submodule(path).register_forward_pre_hook(lambda *_, module=site.module: ran.add(module))
        )
    run(model, inputs)
    for handle in handles:
        handle.remove()
    return {name for name, site in sites.items() if site.module in ran}


def _missed(model: Any, sites: dict[str, Any]) -> list[str]:
    """Classes of attention modules that own matrices and are no site."""
    inside = [site.module for site in sites.values()]
    missed = set()
    for path, module in model.named_modules():
        name = type(module).__name__
        if "ttention" not in name or any(
            path == i or path.startswith(i + ".") or i.startswith(path + ".") for i in inside
        ):
            continue
        if sum(1 for child in module.children() if getattr(getattr(child, "weight", None), "ndim", 0) == 2) >= 2:
            missed.add(name)
    return sorted(missed)


def _eager_experts(model: Any) -> None:
    """The grouped kernel of mixtures of experts has no float64."""
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")
