"""Speed of generation: how long the first token takes, and how long each one after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.prune.speed.timing import Clock, Times, measure, row_of, synchroniser


def generates(model: nn.Module) -> bool:
    """Whether the model writes text: it has a `generate` that is meant for it.

    >>> generates(nn.Linear(1, 1))
    False
    """
    can = getattr(model, "can_generate", None)
    return bool(can is not None and can())


def generation_speed(
    dense: nn.Module,
    cut: nn.Module,
    grid: Sequence[tuple[int, int, Mapping[str, Tensor]]],
    *,
    new_tokens: int = 16,
    rounds: int = 30,
    seconds: float | int | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[dict[str, Any]]:
    """A row per setting: time to the first token, then time a further token, dense against cut.

    Both are what a user waits for: greedy `generate`, once for one token (`prefill`) and once for
    `new_tokens`; the difference, divided by the further tokens, is a decoding step (`decode`). An
    encoder-decoder's prefill is its encoder and one step.

    Args:
        dense: the model before.
        cut: the model after.
        grid: batch, prompt length and the inputs that say so.
        new_tokens: tokens written, at least 2.
        rounds: of the timing, of each of the two.
        seconds: the most that all of it may take, roughly.
        seed: of order and resampling.
        clock: tells the time in seconds.

    >>> generation_speed(nn.Linear(1, 1), nn.Linear(1, 1), [])
    []
    """
    sync, generator = synchroniser(dense), np.random.default_rng(seed)
    share = None if seconds is None else seconds / max(1, 2 * len(grid))
    rows = []
    for batch, length, inputs in grid:
        given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        prompt = {name: value for name, value in given.items() if not name.startswith("decoder_")}
        taken = {}
        with _never_ending(dense), _never_ending(cut):
            for count in (1, new_tokens):
                before, after = (partial(_write, model, prompt, count) for model in (dense, cut))
                taken[count] = measure(before, after, sync, rounds, share, generator, clock)
            cache = {name: _cache_bytes(model, given) for name, model in (("dense", dense), ("cut", cut))}
        prefill, decode = taken[1], _a_token(taken[1], taken[new_tokens], new_tokens)
        rows.append({
            "batch": batch, "length": length, "new_tokens": new_tokens,
            "prefill": _timing(prefill, seed), "decode": _timing(decode, seed),
            "tokens_per_second": {name: batch / float(np.median(getattr(decode, name))) for name in ("dense", "cut")},
            "cache_bytes": cache,
        })  # fmt: skip
    return rows


def _timing(times: Times, seed: int) -> dict[str, Any]:
    row = row_of(times, (0, 0), seed)
    return {name: value for name, value in row.items() if not name.startswith("operation")}


def _a_token(one: Times, many: Times, count: int) -> Times:
    """Seconds of one decoding step in every round; never below a nanosecond, as a difference of noise may be."""
    rounds = min(len(one.dense), len(many.dense))
    before, after, again = (
        np.maximum((getattr(many, name)[:rounds] - getattr(one, name)[:rounds]) / (count - 1), 1e-9)
        for name in ("dense", "cut", "again")
    )
    return Times(before, after, again, many.calls, one.stable and many.stable)


@contextlib.contextmanager
def _never_ending(model: nn.Module) -> Iterator[None]:
    """No token ends a text inside the block: random weights may say it at once, and times would not compare."""
    config: Any = getattr(model, "generation_config", None)
    if config is None:
        yield
        return
    names = ("eos_token_id", "forced_eos_token_id", "max_length", "max_new_tokens", "min_length", "min_new_tokens")
    before = {name: getattr(config, name, None) for name in names}
    for name in names:
        setattr(config, name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _write(model: Any, prompt: Mapping[str, Tensor], count: int) -> Tensor:
    config = model.generation_config
    starts = (config.decoder_start_token_id, config.bos_token_id)
    pair = getattr(model.config, "is_encoder_decoder", False)
    start = {"decoder_start_token_id": 0} if pair and starts == (None, None) else {}
    found: Tensor = model.generate(
        **prompt, **start, max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1, use_cache=True,
        pad_token_id=0,
    )  # fmt: skip
    return found


def _cache_bytes(model: Any, given: Mapping[str, Tensor]) -> int | None:
    """Bytes of keys and values (or states) that a prompt leaves in the cache; None without one."""
    inputs = dict(given)
    if getattr(model.config, "is_encoder_decoder", False):
        begun = inputs["decoder_input_ids"] if "decoder_input_ids" in inputs else inputs["input_ids"]
        inputs["decoder_input_ids"] = begun[:, :1]
    cache = getattr(model(**inputs, use_cache=True), "past_key_values", None)
    if cache is None:
        return None
    seen: dict[int, int] = {}
    _tensors(cache, seen, set())
    return sum(seen.values())


def _tensors(value: Any, found: dict[int, int], seen: set[int]) -> None:
    """Sizes of all tensors in a cache, each storage once, whatever the cache is made of."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        found[value.data_ptr()] = value.numel() * value.element_size()
    elif isinstance(value, Mapping):
        for part in value.values():
            _tensors(part, found, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            _tensors(part, found, seen)
    elif hasattr(value, "__dict__"):
        _tensors(vars(value), found, seen)
