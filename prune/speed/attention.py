"""Speed of the attention blocks alone: what a cut changes, without the rest of the model around it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from headwise.analysis.errors import HeadwiseError
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.uncached import uncached
from headwise.analysis.sites import Site, find_sites
from headwise.prune.speed.operations import operations
from headwise.prune.speed.timing import Clock, measure, row_of, synchroniser

#: Positional and keyword arguments of one call of each block, by the block's path.
Calls = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]


def attention_speed(
    dense: nn.Module,
    cut: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rounds: int = 30,
    seconds: float | int | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> dict[str, Any] | None:
    """All attention blocks of both models, one after the other, on what reaches them in a forward pass.

    A block is the smallest module that holds a site's projections: what surrounds them there, a residual
    connection or a norm, is timed with it. None where a model has no attention blocks that can be called by
    themselves.

    Args:
        dense: the model before; in evaluation and inference mode, as the cut one.
        cut: the model after.
        inputs: of a forward pass.
        rounds: of the timing.
        seconds: the most that it may take, roughly.
        seed: of order and resampling.
        clock: tells the time in seconds.

    >>> attention_speed(nn.Linear(1, 1), nn.Linear(1, 1), {}) is None
    True
    """
    try:
        paths = list(dict.fromkeys(block_of(site) for site in find_sites(dense).values()))
    except HeadwiseError:
        return None
    found = [_calls(model, paths, inputs) for model in (dense, cut)]
    # A block that a model calls more than once, or hands a cache, is not the same when it is called again.
    if not found[0] or found[0].keys() != found[1].keys():
        return None
    before, after = (_running(model, calls) for model, calls in zip((dense, cut), found, strict=True))
    counted = [sum(operations(model.get_submodule(p), *call) for p, call in calls.items())
               for model, calls in zip((dense, cut), found, strict=True)]  # fmt: skip
    times = measure(before, after, synchroniser(dense), rounds, seconds, np.random.default_rng(seed), clock)
    return {"blocks": list(found[0]), **row_of(times, counted, seed)}


def block_of(site: Site) -> str:
    """Path of the smallest module that holds the site's projections, the output projection included.

    >>> block_of(Site("0", "encoder.layer.0.attention.self", "encoder.layer.0.attention.output.dense", 2, 2, 4))
    'encoder.layer.0.attention'
    >>> block_of(Site("0", "layers.0.self_attn", "layers.0.self_attn.o_proj", 2, 2, 4))
    'layers.0.self_attn'
    """
    both = zip(site.module.split("."), site.output.partition(":")[0].split("."), strict=False)
    common = []
    for one, other in both:
        if one != other:
            break
        common.append(one)
    return ".".join(common)


def _calls(model: nn.Module, paths: list[str], inputs: Mapping[str, Tensor]) -> Calls:
    """What each block is called with; blocks that are called more than once are left out."""
    seen: Calls = {}
    often: set[str] = set()
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(_listening(model.get_submodule(path), path, seen, often))
        model(**inputs, **uncached(model))
    return {path: seen[path] for path in paths if path in seen and path not in often}


def _listening(module: nn.Module, path: str, seen: Calls, often: set[str]) -> contextlib.AbstractContextManager[None]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path in seen:
            often.add(path)
        seen[path] = (args, kwargs)

    return hooked([module.register_forward_pre_hook(hook, with_kwargs=True)])


def _running(model: nn.Module, calls: Calls) -> Callable[[], None]:
    blocks = [(model.get_submodule(path), args, kwargs) for path, (args, kwargs) in calls.items()]

    def run() -> None:
        for block, args, kwargs in blocks:
            block(*args, **kwargs)

    return run
