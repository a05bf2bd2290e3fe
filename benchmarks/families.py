#!/usr/bin/env python
"""Walks the configuration classes of `transformers` and counts for how many model types a cut is exact.

    python benchmarks/families.py [--only bert,llama] [--out benchmarks/FAMILIES.md] [--jobs 2] [--seconds 60]
    python benchmarks/families.py --rows rows.jsonl --out benchmarks/FAMILIES.md     # goes on where it was stopped

Every model type is built tiny, with random weights, biases and tables, in float64; a few need `timm` besides
(`pip install timm`). The oracle is made here: the columns of the output projection that belong to the removed heads
are zeroed by hand. A type is

    exact          the gated and the cut model give the oracle's output (< 1e-6 of its scale) for every plan. Where no
                   synthetic input fits the whole, this is measured on a part of it (a tower), or on its blocks alone
    refused        `cut` says why not, and has changed nothing; gating gives the oracle's output
    no attention   it has no attention to cut, and is told so
    not reached    the synthetic inputs run, but pass through no site
    not buildable  no tiny model, or no synthetic input, with the exception
    FAILED         the cut model stops with an error; WRONG: it gives other numbers. Neither may happen.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import alone  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tiny import OVERRIDES, build, model_classes, tiny_configs  # noqa: E402
from transformers import CONFIG_MAPPING, PreTrainedModel  # noqa: E402

from headwise.analysis.anatomy import attention_like  # noqa: E402
from headwise.analysis.block_inputs import block_inputs  # noqa: E402
from headwise.analysis.errors import BadInput, CannotCut, UnknownModel  # noqa: E402
from headwise.analysis.gates import gated, never_called  # noqa: E402
from headwise.analysis.sites import find_sites  # noqa: E402
from headwise.analysis.synthetic import main_output, synthetic_inputs  # noqa: E402
from headwise.prune.surgery import cut  # noqa: E402

# A wrong slice shows as 1e-2 or more; some forwards compute a part in float32 whatever the weights are.
LIMIT, LIMIT_OF_FLOATS = 1e-6, 1e-4


class Timeout(BaseException):
    """A model type took too long."""


def main() -> int:
    """Walk, count, write."""
    options = _options()
    names = options.only.split(",") if options.only else sorted(CONFIG_MAPPING.keys())
    if options.worker:
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        signal.signal(signal.SIGPROF, _alarm)
        for name in names:
            print("ROW " + json.dumps(row(name, options.seconds)), flush=True)
        return 0
    kept = _read(options.rows)
    missing = [name for name in names if options.only or name not in kept]
    for found in _in_processes(missing, options.jobs, options.seconds):
        kept[found["type"]] = found
        if options.rows:
            print(f"{len(kept)}/{len(names)} {found['type']}: {found['verdict']}", file=sys.stderr, flush=True)
            Path(options.rows).write_text("\n".join(json.dumps(kept[name]) for name in sorted(kept)) + "\n")
    rows = [kept[name] for name in sorted(kept)]
    counts = Counter(r["verdict"] for r in rows)
    print(dict(counts))
    for r in rows:
        if r["verdict"] in ("WRONG", "FAILED") or (options.only and r["type"] in names):
            print(r)
    if options.out:
        if absent := sorted(set(CONFIG_MAPPING) - set(kept)):
            sys.exit(f"not written: {len(absent)} types have no row yet ({', '.join(absent[:5])}, …)")
        Path(options.out).write_text(_page(rows, counts))
    return int(bool(counts["WRONG"] + counts["FAILED"]))


def _read(place: str | None) -> dict[str, dict[str, Any]]:
    """The rows of an earlier walk by type, if it was of this release."""
    if not place or not Path(place).exists():
        return {}
    rows = [json.loads(line) for line in Path(place).read_text().splitlines()]
    return {r["type"]: r for r in rows if r["transformers"] == transformers.__version__}


@functools.cache
def _versions() -> dict[str, str]:
    """What a row was measured with."""
    asked = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(
        asked, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return {"transformers": transformers.__version__, "commit": commit or "unknown"}


def row(name: str, seconds: int) -> dict[str, Any]:
    """One model type's verdict."""
    started = time.perf_counter()
    result: dict[str, Any] = {
        "type": name, "verdict": "not buildable", "why": "", **_versions()
    }  # fmt: skip
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: other work on the machine takes nothing away
        result |= _judge(name, time.process_time() + seconds / 4)
    except Timeout:
        result["why"] = f"took longer than {seconds} s"
    except Exception as error:
        result["why"] = _short(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return result | {"seconds": round(time.perf_counter() - started, 1)}


def _judge(name: str, until: float) -> dict[str, Any]:
    cls = CONFIG_MAPPING[name]
    try:
        classes = model_classes(cls)
    except ImportError as error:
        return {"verdict": "no model class", "why": _short(error)}
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
        met.append(_short(error))  # no configuration could be made at all
    return best


def _one(model_class: Any, config: Any, met: list[str], parts: list[Any]) -> dict[str, Any]:
    """One class with one configuration: its verdict, or nothing and a line in `met`."""
    try:
        model = build(model_class, copy.deepcopy(config))
    except Exception as error:
        met.append(f"{model_class.__name__}: {_short(error)}")
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
            met.append(_short(error).partition("no synthetic input fits its forward ")[2][:330])
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
            want, gate, got = alone.measure(model, site, inputs, _oracle, cut)
        except CannotCut as error:
            refused = str(error)[:260]
            continue
        except Exception as error:  # the row says so
            return {"verdict": "FAILED", "why": f"a block alone: {_short(error)}", "alone": True}
        measured.append(max(_apart(want, gate), _apart(want, got)))
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
    dense = _run(model, inputs)
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
    want = _run(_oracle(model, sites, plan), inputs)
    if _apart(want, dense) == 0:
        raise Verdict("not reached", "removing heads does not change the output")
    with gated(model, plan):
        gate = _apart(want, _run(model, inputs))
    if gate > limit:
        raise Verdict("WRONG", f"gate differs from the oracle by {gate:.1e} ({plan})")
    if _apart(dense, _run(model, inputs)) > 0:
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
        raise Verdict("FAILED", f"cut: {_short(error)}") from error
    try:
        got = _run(smaller, inputs)
    except Exception as error:
        raise Verdict("FAILED", f"after the cut: {_short(error)} ({plan})") from error
    apart = _apart(_run(_oracle(model, sites, plan), inputs), got)
    if apart > limit:
        raise Verdict("WRONG", f"cut differs from the oracle by {apart:.1e} ({plan})")
    return apart


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


def _oracle(model: Any, sites: dict[str, Any], remove: dict[str, list[int]]) -> Any:
    model = copy.deepcopy(model)
    for name, heads in remove.items():
        path, _, bare = sites[name].output.partition(":")
        module, width = model.get_submodule(path), sites[name].head_dim
        # A weight of its own, also where another module is tied to it.
        weight = getattr(module, bare or "weight").detach().clone()
        for head in heads:
            rows = slice(head * width, (head + 1) * width)
            if bare:
                weight[:, head] = 0
            elif type(module).__name__ == "Conv1D":
                weight[rows] = 0
            else:
                weight[:, rows] = 0
        setattr(module, bare or "weight", torch.nn.Parameter(weight))
    return model


def _reached(model: Any, sites: dict[str, Any], inputs: dict[str, Any]) -> set[str]:
    """Sites whose output projection (or whose module, where that is never called) runs."""
    ran: set[str] = set()
    handles = []
    for site in sites.values():
        path = site.module if never_called(model, site) else site.output
        handles.append(
            model.get_submodule(path).register_forward_pre_hook(lambda *_, module=site.module: ran.add(module))
        )
    _run(model, inputs)
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


def _run(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return main_output(model(**inputs))


def _apart(want: torch.Tensor, got: torch.Tensor) -> float:
    if want.shape != got.shape:
        return float("inf")
    if not torch.equal(torch.isfinite(want), torch.isfinite(got)):
        return float("inf")
    want, got = want.nan_to_num(0, 0, 0), got.nan_to_num(0, 0, 0)
    return ((want - got).abs().max() / want.abs().max().clamp(min=1e-3)).item()


def _eager_experts(model: Any) -> None:
    """The grouped kernel of mixtures of experts has no float64."""
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")


def _alarm(*_: Any) -> None:
    raise Timeout


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:420]}"


# A worker walks this many types: then its memory is given back and its rows are kept.
CHUNK = 25


def _in_processes(names: list[str], jobs: int, seconds: int) -> Iterator[dict[str, Any]]:
    """Rows from worker processes, a few at a time; a worker that dies costs one row, the rest goes on in a new one."""
    waiting = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
    running: list[_Worker] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Worker(waiting.pop(0), seconds))
        for worker in list(running):
            ended = worker.process.poll() is not None
            yield from worker.rows()[worker.told :]
            worker.told = len(worker.rows())
            if not ended:
                continue
            running.remove(worker)
            if rest := worker.names[worker.told :]:
                why = f"the process died ({worker.process.returncode})"
                yield {"type": rest[0], "verdict": "not buildable", "why": why, "seconds": 0, **_versions()}
                if rest[1:]:
                    waiting.insert(0, rest[1:])
        time.sleep(0.3)


class _Worker:
    def __init__(self, names: list[str], seconds: int) -> None:
        self.names, self.told = names, 0
        self.out = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - lives as long as the worker
        command = [sys.executable, __file__, "--worker", "--only", ",".join(names), "--seconds", str(seconds)]
        self.process = subprocess.Popen(
            command, stdout=self.out, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    def rows(self) -> list[dict[str, Any]]:
        lines = Path(self.out.name).read_text().splitlines()
        return [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="model types, comma-separated")
    parser.add_argument("--out", help="write the table here")
    parser.add_argument("--rows", help="keep the rows here, and walk only types that have none yet (or --only these)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=90, help="of the processor, for one model type")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _marks(row: dict[str, Any]) -> str:
    return ("*" if row.get("partly") else "") + ("¹" if row.get("part") else "") + ("²" if row.get("alone") else "")


def _page(rows: list[dict[str, Any]], counts: Counter[str]) -> str:
    installed = [name for name in ("transformers", "torch", "timm") if importlib.util.find_spec(name)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed)
    order = ("exact", "refused", "not reached", "not buildable", "no attention", "no model class", "FAILED", "WRONG")
    commits = Counter(r["commit"] for r in rows)
    walked = ", ".join(f"{count} types at {commit}" for commit, count in commits.most_common())
    lines = [
        "# Model types",
        "",
        f"Written by `benchmarks/families.py` ({versions}, float64, tiny random models; {walked}).",
        "",
    ]
    lines += ["| verdict | model types |", "|---|---|", *(f"| {v} | {counts[v]} |" for v in order), ""]
    for verdict in ("exact", "refused", "not reached", "not buildable", "no attention", "FAILED", "WRONG"):
        lines += [f"## {verdict}", ""]
        mine = [r for r in rows if r["verdict"] == verdict]
        if verdict in ("exact", "no attention"):
            lines += [", ".join(r["type"] + _marks(r) for r in mine), ""]
            left = {kind: r["type"] for r in mine for kind in r.get("missed") or []}
            if verdict == "exact" and left:
                told = ", ".join(f"{kind} ({name})" for kind, name in sorted(left.items()))
                lines += [f"Attention in these models that is no site, so neither gated nor cut: {told}.", ""]
            if verdict == "exact":
                lines += ["¹ measured on a part of the model; ² measured on its attention blocks alone", ""]
            if any(r.get("partly") for r in mine):
                lines += [
                    "`*` some sites of this type are refused: "
                    + "; ".join(sorted({r["partly"] for r in mine if r.get("partly")})),
                    "",
                ]
        else:
            lines += [
                "| type | why |",
                "|---|---|",
                *(f"| {r['type']} | {r['why'].replace('|', '/')} |" for r in mine),
                "",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
