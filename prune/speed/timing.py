"""Timing: two ways of doing the same, side by side, so that what slows the machine down slows down both."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binom, binomtest
from torch import nn

Call = Callable[[], Any]
Clock = Callable[[], float]

#: A block of calls lasts at least this long, so that the clock and the scheduler do not show in it.
_BLOCK_SECONDS = 0.03
#: With fewer, six to nothing, a sign test cannot reach 5 %.
_FEWEST_ROUNDS = 6
#: Warm-up ends when the median of this many calls is within this share of the median of those before.
_WARM_CALLS, _WARM_SHARE, _MOST_WARM_CALLS = 4, 0.05, 60
_RESAMPLES, _LEVEL = 2000, 0.05


@dataclass(frozen=True)
class Times:
    """Seconds a call in every round: the two models, and the dense one once more."""

    dense: np.ndarray
    cut: np.ndarray
    again: np.ndarray
    calls: dict[str, int]
    stable: bool


def measure(
    dense: Call,
    cut: Call,
    sync: Call,
    rounds: int,
    seconds: float | int | None,
    generator: np.random.Generator,
    clock: Clock = time.perf_counter,
) -> Times:
    """Seconds a call in each round, after warming up until the times stand still.

    Args:
        dense: does the work of the model before, once.
        cut: that of the model after.
        sync: waits until the device is idle; see `synchroniser`.
        rounds: of a block of calls each, in random order.
        seconds: the most that this may take, roughly; at least six rounds are done.
        generator: of the order.
        clock: tells the time in seconds.

    >>> nothing = lambda: None
    >>> len(measure(nothing, nothing, nothing, 2, None, np.random.default_rng(0)).dense)
    2
    """
    times, calls, stable = interleaved(
        {"dense": dense, "cut": cut, "again": dense}, sync, rounds, seconds, generator, clock
    )
    return Times(times["dense"], times["cut"], times["again"], {n: calls[n] for n in ("dense", "cut")}, stable)


def interleaved(
    work: Mapping[str, Call],
    sync: Call,
    rounds: int,
    seconds: float | int | None,
    generator: np.random.Generator,
    clock: Clock = time.perf_counter,
) -> tuple[dict[str, np.ndarray], dict[str, int], bool]:
    """Seconds a call of everything in every round, calls in a block, and whether warm times stood still.

    Args:
        work: does one thing each, once; the same thing under two names is warmed up once.
        sync: waits until the device is idle; see `synchroniser`.
        rounds: of a block of calls each, in random order.
        seconds: the most that this may take, roughly; at least six rounds are done.
        generator: of the order.
        clock: tells the time in seconds.

    >>> times, calls, _ = interleaved({"a": lambda: None}, lambda: None, 2, None, np.random.default_rng(0))
    >>> len(times["a"]), calls["a"] > 1
    (2, True)
    """
    began = clock()
    different = {id(call): call for call in work.values()}
    # Warming up takes a fifth of the time at most, whatever there is to warm up.
    share = None if seconds is None else 2 * seconds / len(different)
    warm = {key: _warm_up(call, sync, clock, share) for key, call in different.items()}
    calls = {name: max(1, int(np.ceil(_BLOCK_SECONDS / max(warm[id(call)][0], 1e-9)))) for name, call in work.items()}
    times: dict[str, list[float]] = {name: [] for name in work}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(max(1, rounds)):
            if seconds is not None and done >= _FEWEST_ROUNDS and clock() - began >= seconds:
                break
            for name in generator.permutation(list(work)).tolist():
                times[name].append(_block(work[name], calls[name], sync, clock))
    finally:
        if collecting:
            gc.enable()
    return {n: np.array(t) for n, t in times.items()}, calls, all(still for _, still in warm.values())


def _warm_up(call: Call, sync: Call, clock: Clock, seconds: float | int | None) -> tuple[float, bool]:
    """Seconds a call once warm, and whether the times stood still before the calls or the time ran out."""
    began = clock()
    seen: list[float] = []
    while len(seen) < _MOST_WARM_CALLS:
        seen.append(_block(call, 1, sync, clock))
        if len(seen) >= 2 * _WARM_CALLS:
            before, now = np.median(seen[-2 * _WARM_CALLS : -_WARM_CALLS]), np.median(seen[-_WARM_CALLS:])
            if abs(now - before) <= _WARM_SHARE * before:
                return float(now), True
        if seconds is not None and len(seen) > 1 and clock() - began > seconds / 10:
            break
    return float(np.median(seen[-_WARM_CALLS:])), False


def _block(call: Call, calls: int, sync: Call, clock: Clock) -> float:
    """Seconds a call, over a block of calls that begins and ends with an idle device."""
    sync()
    start = clock()
    for _ in range(calls):
        call()
    sync()
    return (clock() - start) / calls


def synchroniser(model: nn.Module) -> Call:
    """Waits for the model's device to be idle.

    >>> synchroniser(nn.Linear(1, 1))()
    """
    device = next(model.parameters()).device
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def row_of(times: Times, counted: Sequence[int], seed: int) -> dict[str, Any]:
    """Times, ratio, drift and verdict of one setting, as plain data.

    Args:
        times: of the rounds.
        counted: operations of the dense and of the cut model.
        seed: of the resampling.

    >>> steady = np.full(8, 2.0)
    >>> row = row_of(Times(steady, steady / 2, steady, {"dense": 1, "cut": 1}, True), (4, 3), seed=0)
    >>> row["ratio"]["median"], row["significant"]
    (2.0, True)
    """
    ratio = _between(times.dense / times.cut)
    # A wider interval: it is looked at in every cell, and a false alarm casts doubt on the whole grid.
    drift = _median_interval(times.dense / times.again, seed, level=0.99)
    # What the machine does by itself, in either direction, is no gain.
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


def _between(values: np.ndarray) -> dict[str, float]:
    """The median with the interval that the sign test leaves: it excludes 1 exactly where the test finds a difference.

    Its ends are two of the rounds themselves, whatever the times are distributed like (Thompson, 1936). Of fewer than
    six rounds no interval holds the median with 95 %: it spans all of them then.
    """
    # One more than the rounds that may lie on one side of the median by chance.
    beyond = max(1, int(binom.ppf(_LEVEL / 2, len(values), 0.5)))
    found = np.sort(values)
    return {"median": float(np.median(values)), "low": float(found[beyond - 1]), "high": float(found[-beyond])}


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
