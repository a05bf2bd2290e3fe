"""Speed: the dense and the cut model timed side by side in one process."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from headwise.analysis.errors import BadInput
from headwise.analysis.kernels import kernels
from headwise.analysis.progress import track
from headwise.prune.inputs import fitting, synthetic_inputs
from headwise.prune.operations import operations, parameters, size_in_bytes
from headwise.prune.tasks.outcome import judging
from headwise.prune.tasks.text_classification import pad_known

MakeInputs = Callable[[int, int], Mapping[str, Tensor]]
Clock = Callable[[], float]

#: A block of calls lasts at least this long, so that the clock and the scheduler do not show in it.
_BLOCK_SECONDS = 0.03
#: With fewer, six to nothing, a sign test cannot reach 5 %.
_FEWEST_ROUNDS = 6
#: Warm-up ends when the median of this many calls is within this share of the median of those before.
_WARM_CALLS, _WARM_SHARE, _MOST_WARM_CALLS = 4, 0.05, 60
_RESAMPLES, _LEVEL = 2000, 0.05
#: What `headwise` puts on modules of a cut model to keep heads of an argument or of an output.
_OWN_HOOKS = frozenset({"KeepArgument", "KeepOutput"})
#: Dormant hooks that transformers leaves behind once hidden states were asked for.
_DORMANT = "transformers.utils.output_capturing"


@dataclass(frozen=True)
class _Times:
    """Seconds a call in every round: the two models, and the dense one once more."""

    dense: np.ndarray
    cut: np.ndarray
    again: np.ndarray
    calls: dict[str, int]
    stable: bool


def compare_speed(
    dense: nn.Module,
    cut: nn.Module,
    make_inputs: MakeInputs | None = None,
    *,
    batches: Sequence[int] = (1, 8),
    lengths: Sequence[int] = (32, 128),
    rounds: int = 30,
    seconds: float | int | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """How much faster the cut model is, for every batch × length: plain data, as `speed.json` keeps it.

    Every round times a block of calls of the dense model, of the cut model, and of the dense model once
    more, in random order; ratios are taken within rounds, so what slows the machine down slows down all
    three. `ratio` is dense over cut time (above 1: faster) with the bootstrap interval of its median.
    `drift`, the dense model against itself (99 %), shows what the machine alone can do; a difference is
    `significant` only if a sign test over rounds says so (`p`) and its interval lies
    beyond anything that the drift's reaches, in either direction. `operation_ratio` is the speed-up
    that the removed operations alone predict.

    Args:
        dense: the model before.
        cut: the model after; same device, dtype and attention kernel.
        make_inputs: gives the forward's arguments for a batch and length; made up from the config if None.
        batches: texts a batch.
        lengths: tokens a text; those beyond the model's positions are left out, and `notes` says so.
        rounds: in each cell of the grid.
        seconds: the most that the whole may take, roughly; rounds are then fewer, but at least
            six, and settings that there is no time for are left out and named in `notes`.
        seed: of inputs, order and resampling.
        clock: tells the time in seconds.

    Raises:
        BadInput: the models differ in kernel, dtype or device, or hooks are on them that would be timed too.

    >>> dense, cut = nn.Linear(64, 64), nn.Linear(64, 32)
    >>> make = lambda batch, length: {"input": torch.ones(batch, length, 64)}
    >>> found = compare_speed(dense, cut, make, batches=(1,), lengths=(8,), rounds=2)
    >>> found["rows"][0]["operation_ratio"]
    2.0
    """
    facts = _alike(dense, cut)
    allowed, dropped = fitting(dense, tuple(lengths))
    make = make_inputs or (lambda batch, length: synthetic_inputs(dense, batch, length, seed))
    notes = [f"length {length} is more than the model's positions allow" for length in dropped]
    # Largest first: should the time run out, it is the setting that says most.
    grid = sorted(((b, n) for b in batches for n in allowed), key=lambda cell: (-cell[0] * cell[1], -cell[0]))
    with _ready(dense), _ready(cut):
        rows = _timed(dense, cut, grid, make, rounds, seconds, seed, clock, notes)
    largest = rows[0]
    rows.sort(key=lambda row: (row["batch"], row["length"]))
    return {
        "schema": 1,
        "rows": rows,
        "parameters": {"dense": parameters(dense), "cut": parameters(cut)},
        "bytes": {"dense": size_in_bytes(dense), "cut": size_in_bytes(cut)},
        "operations": largest["operations"],
        "drift": _drift(rows),
        **facts,
        "threads": torch.get_num_threads(),
        "seed": seed,
        "notes": notes,
    }


def _timed(
    dense: nn.Module,
    cut: nn.Module,
    grid: Sequence[tuple[int, int]],
    make: MakeInputs,
    rounds: int,
    seconds: float | int | None,
    seed: int,
    clock: Clock,
    notes: list[str],
) -> list[dict[str, Any]]:
    """A row per setting, in the order of the grid; settings that there is no time for go to `notes`."""
    generator = np.random.default_rng(seed)
    began = clock()
    rows: list[dict[str, Any]] = []
    for i, (batch, length) in enumerate(track(grid, label="timing both models")):
        left = None if seconds is None else seconds - (clock() - began)
        if rows and left is not None and left <= 0:
            notes.append(f"batch {batch} × length {length} was not timed: the {seconds:g} seconds were over")
            continue
        share = None if left is None else left / (len(grid) - i)
        inputs = dict(make(batch, length))
        counted = [operations(model, inputs) for model in (dense, cut)]
        times = _measure(dense, cut, inputs, rounds, share, generator, clock)
        rows.append({"batch": batch, "length": length, **_row(times, counted, seed)})
    return rows


def _alike(dense: nn.Module, cut: nn.Module) -> dict[str, Any]:
    """Kernel, dtype and device of both models.

    Raises:
        BadInput: they differ, so the difference in time would not be the cut's.
    """
    found = [_facts(model) for model in (dense, cut)]
    for name in found[0]:
        first, second = (facts[name] for facts in found)
        if first != second:
            raise BadInput(
                f"cannot compare speed: the dense model's {name} is {first}, the cut model's {second}; load both alike"
            )
    return found[0]


def _facts(model: nn.Module) -> dict[str, Any]:
    names = {str(kernel) for kernel in kernels(model).values() if kernel is not None}
    first = next(model.parameters())
    return {
        "kernel": ", ".join(sorted(names)) or None,
        "dtype": str(first.dtype).removeprefix("torch."),
        "device": str(first.device),
    }


@contextlib.contextmanager
def _ready(model: nn.Module) -> Iterator[None]:
    """The model as it is used: evaluation and inference mode, nothing else hooked in, padding id known.

    Raises:
        BadInput: a hook is on a module that would be timed with it.
    """
    _refuse_hooks(model)
    dormant = _lift_dormant(model)
    try:
        with contextlib.ExitStack() as stack:
            if hasattr(model, "config"):
                stack.enter_context(pad_known(model, 0))
            stack.enter_context(judging(model))
            yield
    finally:
        for hooks, before in dormant:
            # In the order that they had: hooks run in the order of the dictionary.
            hooks.clear()
            hooks.update(before)


def _refuse_hooks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]:
            if type(hook).__name__ not in _OWN_HOOKS and getattr(hook, "__module__", "") != _DORMANT:
                raise BadInput(
                    f"cannot time {type(model).__name__}: a forward hook is on {name or 'the model'!r} "
                    f"({getattr(hook, '__qualname__', type(hook).__name__)}); leave gated(…) or capture(…) first, "
                    "or remove it"
                )


def _lift_dormant(model: nn.Module) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    lifted: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        hooks: dict[int, Any] = module._forward_hooks
        dormant = [key for key, hook in hooks.items() if getattr(hook, "__module__", "") == _DORMANT]
        if dormant:
            lifted.append((hooks, dict(hooks)))
            for key in dormant:
                del hooks[key]
    return lifted


def _measure(
    dense: nn.Module,
    cut: nn.Module,
    inputs: Mapping[str, Tensor],
    rounds: int,
    seconds: float | int | None,
    generator: np.random.Generator,
    clock: Clock,
) -> _Times:
    """Seconds a call in each round, after warming up until the times stand still."""
    began = clock()
    models = {"dense": dense, "cut": cut, "again": dense}
    sync = _synchroniser(dense)
    warm = {name: _warm_up(models[name], inputs, sync, clock, seconds) for name in ("dense", "cut")}
    calls = {name: max(1, int(np.ceil(_BLOCK_SECONDS / max(t, 1e-9)))) for name, (t, _) in warm.items()}
    calls["again"] = calls["dense"]
    times: dict[str, list[float]] = {name: [] for name in models}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(max(1, rounds)):
            if seconds is not None and done >= _FEWEST_ROUNDS and clock() - began >= seconds:
                break
            for name in generator.permutation(list(models)).tolist():
                times[name].append(_block(models[name], inputs, calls[name], sync, clock))
    finally:
        if collecting:
            gc.enable()
    stable = all(still for _, still in warm.values())
    dense_s, cut_s, again_s = (np.array(times[name]) for name in models)
    return _Times(dense_s, cut_s, again_s, {name: calls[name] for name in ("dense", "cut")}, stable)


def _warm_up(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    sync: Callable[[], None],
    clock: Clock,
    seconds: float | int | None,
) -> tuple[float, bool]:
    """Seconds a call once warm, and whether the times stood still before the calls or the time ran out."""
    began = clock()
    seen: list[float] = []
    while len(seen) < _MOST_WARM_CALLS:
        seen.append(_block(model, inputs, 1, sync, clock))
        if len(seen) >= 2 * _WARM_CALLS:
            before, now = np.median(seen[-2 * _WARM_CALLS : -_WARM_CALLS]), np.median(seen[-_WARM_CALLS:])
            if abs(now - before) <= _WARM_SHARE * before:
                return float(now), True
        if seconds is not None and len(seen) > 1 and clock() - began > seconds / 10:
            break
    return float(np.median(seen[-_WARM_CALLS:])), False


def _block(model: nn.Module, inputs: Mapping[str, Tensor], calls: int, sync: Callable[[], None], clock: Clock) -> float:
    """Seconds a call, over a block of calls that begins and ends with an idle device."""
    sync()
    start = clock()
    for _ in range(calls):
        model(**inputs)
    sync()
    return (clock() - start) / calls


def _synchroniser(model: nn.Module) -> Callable[[], None]:
    device = next(model.parameters()).device
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def _row(times: _Times, counted: Sequence[int], seed: int) -> dict[str, Any]:
    ratio = _median_interval(times.dense / times.cut, seed)
    # A wider interval: it is looked at in every cell, and a false alarm casts doubt on the whole grid.
    drift = _median_interval(times.dense / times.again, seed, level=0.99)
    # What the machine does by itself, in either direction, is no gain. The sign test guards against the interval
    # of a median of few rounds, which is too narrow at some numbers of them.
    alone = max(drift["high"], 1 / drift["low"])
    faster, slower = int((times.dense > times.cut).sum()), int((times.dense < times.cut).sum())
    p = float(binomtest(faster, faster + slower).pvalue) if faster + slower else 1.0
    return {
        "dense_ms": _spread(1e3 * times.dense),
        "cut_ms": _spread(1e3 * times.cut),
        "ratio": ratio,
        "drift": drift,
        "operations": {"dense": counted[0], "cut": counted[1]},
        "operation_ratio": counted[0] / counted[1] if counted[1] else None,
        "p": p,
        "significant": bool(p < _LEVEL and (ratio["low"] > alone or ratio["high"] < 1 / alone)),
        "rounds": len(times.dense),
        "calls": times.calls,
        "warm": times.stable,
    }


def _median_interval(values: np.ndarray, seed: int, level: float = 0.95) -> dict[str, float]:
    """The median with its percentile bootstrap interval over rounds (Efron 1979)."""
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(_RESAMPLES, len(values)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.median(values[drawn], axis=1), [tail, 1 - tail])
    return {"median": float(np.median(values)), "low": float(low), "high": float(high)}


def _spread(values: np.ndarray) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}


def _drift(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the dense model against itself looked different anywhere: then the machine was not steady."""
    off = [[row["batch"], row["length"]] for row in rows if not row["drift"]["low"] <= 1 <= row["drift"]["high"]]
    return {"steady": not off, "unsteady": off}
