"""Taking a latency table: the model and versions of it with fewer heads, timed side by side, and kept for next time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from headwise.analysis.capture.kernels import kernels
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.environment import now
from headwise.prune.selection.blocks import Block, Room, Unit, blocks_of
from headwise.prune.selection.reach import walked
from headwise.prune.speed.inputs import fitting, inputs_to_time
from headwise.prune.speed.latency import Latency, Timed, fitted
from headwise.prune.speed.metering import shape_of, sharing
from headwise.prune.speed.quiet import ready
from headwise.prune.speed.timing import Clock, interleaved, synchroniser

log = logging.getLogger("headwise")

#: Numbers of heads that are timed for each shape of site; between them the table is a straight line.
_KNOTS = 7

Setting = dict[str, str | int | None]


def setting_of(model: nn.Module, weights: str, batch: int, length: int, unit: Unit) -> Setting:
    """What a latency table holds for: model, setting, and everything about the machine that times depend on.

    >>> setting_of(nn.Linear(2, 2), "abc", 1, 8, "group")["batch"]
    1
    """
    first = next(model.parameters())
    names = {str(kernel) for kernel in kernels(model).values() if kernel is not None}
    import transformers

    return {
        "model": weights, "batch": batch, "length": length, "unit": unit, "device": first.device.type,
        "dtype": str(first.dtype).removeprefix("torch."), "kernel": ", ".join(sorted(names)) or None,
        "threads": torch.get_num_threads(), "processor": _processor(first.device), "torch": torch.__version__,
        "transformers": transformers.__version__,
    }  # fmt: skip


def latency_table(
    model: nn.Module, sites: Mapping[str, Site], setting: Setting, *, rounds: int = 30,
    seconds: float | int | None = 120, seed: int = 0, clock: Clock = time.perf_counter, folder: Path | None = None,
) -> Latency:  # fmt: skip
    """The latency table of a model on this machine: the one kept from last time, or taken now and kept.

    Args:
        model: the model, dense or cut.
        sites: its sites.
        setting: from `setting_of`; a table is kept for exactly this.
        rounds: as for `compare_speed`.
        seconds: the most that taking it may take, roughly.
        seed: of the order.
        clock: tells the time in seconds.
        folder: where tables are kept; the user's cache folder by default.

    Raises:
        BadInput: the model's positions do not reach the length, or its inputs cannot be made up.
    """
    path = (cache_folder() if folder is None else folder) / f"{_key(setting)}.json"
    if path.exists():
        try:
            return Latency.load(path)
        except BadInput as broken:
            log.warning("%s; it is taken again", broken)
    table = take(model, sites, setting, rounds=rounds, seconds=seconds, seed=seed, clock=clock)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        table.save(fresh).replace(path)
    except OSError as error:
        log.warning("the latency table could not be kept in %s (%s); the next run takes it again", path, error)
    return table


def cache_folder() -> Path:
    """Where tables are kept: `headwise/latency` in the user's cache folder.

    >>> cache_folder().name
    'latency'
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headwise" / "latency"


def take(
    model: nn.Module, sites: Mapping[str, Site], setting: Setting, *, rounds: int = 30,
    seconds: float | int | None = 120, seed: int = 0, clock: Clock = time.perf_counter,
) -> Latency:  # fmt: skip
    """Time the model and, for each shape of site, versions with fewer heads in all sites of it, in random order.

    The versions share all weights but those that heads own. Times are taken relative to the model's in the same
    round, so what slows the machine down slows down both.

    Raises:
        BadInput: as `latency_table`.
    """
    batch, length, unit = (setting[name] for name in ("batch", "length", "unit"))
    if fitting(model, (int(length or 1),))[1]:
        raise BadInput(f"reach: length {length} is more than the model's positions allow; give a shorter reach.length")
    blocks = blocks_of(sites)
    alike = {name: str(shape_of(block)) for name, block in blocks.items()}
    versions = _versions(model, blocks, alike, unit)  # type: ignore[arg-type]
    inputs = inputs_to_time(model, int(batch or 1), int(length or 1), seed)
    with contextlib.ExitStack() as stack:
        for each in (model, *(version for _, version in versions)):
            stack.enter_context(ready(each))
        work = {"now": partial(model, **inputs)}
        work |= {str(i): partial(version, **inputs) for i, (_, version) in enumerate(versions)}
        rng = np.random.default_rng(seed)
        times, _, steady = interleaved(work, synchroniser(model), rounds, seconds, rng, clock)
    total = 1e3 * float(np.median(times["now"]))
    measured = tuple(
        Timed(heads=heads, milliseconds=total * float(np.median(times[str(i)] / times["now"])))
        for i, (heads, _) in enumerate(versions)
    )
    counts = {name: len(block.kept) for name, block in blocks.items()}
    dense = {name: block.heads for name, block in blocks.items()}
    rows, said, off = fitted(total, measured, counts, alike, dense)
    return Latency(setting=setting, total=said, rows=rows, measured=measured, off=off, steady=steady, taken=now())


def _versions(
    model: nn.Module, blocks: Mapping[str, Block], alike: Mapping[str, str], unit: Unit
) -> list[tuple[dict[str, int], nn.Module]]:
    """Heads of the blocks of one shape, and the model with as many."""
    found = []
    for shape in dict.fromkeys(alike.values()):
        mine = {n: b for n, b in blocks.items() if alike[n] == shape and not any(call.refusal for call in b.sites)}
        lefts = {name: walked(Room(block, (), 1, unit)) for name, block in mine.items()}
        fullest = max(lefts.values(), key=len, default=[()])
        counts = sorted({len(left) for left in fullest[1:]})
        chosen = sorted({counts[round(i)] for i in np.linspace(0, len(counts) - 1, min(_KNOTS, len(counts)))})
        for count in chosen:
            kept = {name: next((left for left in path if len(left) <= count), path[-1]) for name, path in lefts.items()}
            remove = {
                site.name: [head for head in site.kept if head not in kept[name]]
                for name, block in mine.items()
                for site in block.sites
                if len(kept[name]) < len(site.kept)
            }
            found.append(({name: len(left) for name, left in kept.items()}, sharing(model, remove)))
    return found


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _key(setting: Setting) -> str:
    return hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()[:24]
