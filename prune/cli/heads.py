"""`headwise heads`: where the heads of a checkpoint are, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headwise.prune.cli.options import AsJson, Model, Quiet, Revision, Trust
from headwise.prune.cli.terminal import put, put_json, speaking, stdout, table

BatchSize = Annotated[int | None, typer.Option(min=1, help="With --max-length: say what the maps would take.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="With --batch-size: say what the maps would take.")]


def heads(
    model: Model,
    batch_size: BatchSize = None,
    max_length: MaxLength = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Layers, heads and what can be cut, from the configuration alone: no weights are read."""
    from headwise.analysis.errors import BadInput

    if (batch_size is None) != (max_length is None):
        raise BadInput("the size of the maps needs both --batch-size and --max-length")
    with speaking(quiet):
        found = outline(model, revision=revision, trust_remote_code=trust_remote_code)
        if batch_size is not None and max_length is not None:
            found["maps"] = {
                "batch_size": batch_size,
                "max_length": max_length,
                "bytes": map_bytes(found["heads"], batch_size, max_length),
            }
        if as_json:
            put_json(found)
        elif not quiet:
            _print(found)


def outline(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """The sites of a checkpoint and their sums, as plain data.

    Raises:
        BadInput: no such checkpoint, or a model that is not understood.
    """
    from headwise.analysis.sites import find_sites
    from headwise.prune.checkpoint.skeleton import skeleton

    built = skeleton(model, revision=revision, trust_remote_code=trust_remote_code)
    sites = find_sites(built)
    return {
        "model": model,
        "model_type": str(getattr(built.config, "model_type", "")),
        "class": type(built).__name__,
        "parameters": sum(parameter.numel() for parameter in built.parameters()),
        "heads": sum(len(site.kept) for site in sites.values()),
        "heads_dense": sum(site.heads for site in sites.values()),
        "sites": [asdict(site) for site in sites.values()],
    }


def map_bytes(heads: int, batch_size: int, length: int) -> int:
    """What one batch's maps take in float32, kept for every head.

    >>> map_bytes(heads=144, batch_size=8, length=128)
    75497472
    """
    return 4 * heads * batch_size * length**2


def _print(found: Mapping[str, Any]) -> None:
    from headwise.prune.report.formats import count, plural, size

    rows = [_row(sites) for sites in _alike(found["sites"])]
    columns = ["site", ">heads", ">kv heads", ">head_dim", ">window", "can be cut"]
    stdout().print(table("", columns, rows))
    removed = found["heads_dense"] - found["heads"]
    gone = f" ({removed} of {found['heads_dense']} are gone already)" if removed else ""
    line = f"{plural(found['heads'], 'head')}{gone} in {plural(len(found['sites']), 'site')}, "
    put(f"{found['model']}: {found['class']}, {line}{count(found['parameters'])} parameters")
    maps = found.get("maps")
    if maps:
        shape = f"{maps['batch_size']} × {maps['max_length']} tokens"
        put(f"the maps of one batch of {shape} would take {size(maps['bytes'])} in float32 if they were kept")


def _alike(sites: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs of sites that differ in nothing but their depth: one row each."""
    runs: list[list[dict[str, Any]]] = []
    for site in sites:
        if runs and _nature(runs[-1][-1]) == _nature(site):
            runs[-1].append(site)
        else:
            runs.append([site])
    return runs


def _nature(site: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in site.items() if name not in ("name", "module", "output", "layer", "call"))


def _row(sites: list[dict[str, Any]]) -> list[str]:
    first, last = sites[0], sites[-1]
    name = first["name"] if len(sites) == 1 else f"{first['name']} … {last['name']}"
    kept = len(first["kept"])
    heads = str(kept) if kept == first["heads"] else f"{kept} of {first['heads']}"
    can = first["refusal"] and f"no: {first['refusal']}"
    if not can:
        shared = first["calls"] > 1
        can = "yes, in all layers at once: they share one module" if shared else "yes"
        grouped = first["kv_heads"] < first["heads"]
        can += f"; {first['heads'] // first['kv_heads']} query heads share a key/value head" if grouped else ""
    window = "" if first["window"] is None else str(first["window"])
    return [name, heads, str(first["kv_heads"]), str(first["head_dim"]), window, can]
