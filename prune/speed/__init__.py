"""Speed: the dense and the cut model timed side by side in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.capture.kernels import kernels
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.prune.speed.attention import attention_speed
from headwise.prune.speed.clock import clock_of
from headwise.prune.speed.generation import generates, generation_speed
from headwise.prune.speed.inputs import fitting, inputs_to_time
from headwise.prune.speed.operations import operations, parameters, size_in_bytes
from headwise.prune.speed.peak_memory import peak_memory
from headwise.prune.speed.quiet import ready
from headwise.prune.speed.timing import Clock, measure, row_of, synchroniser
from headwise.prune.tasks.room_to_write import room_to_write

MakeInputs = Callable[[int, int], Mapping[str, Tensor]]


def compare_speed(
    dense: nn.Module,
    cut: nn.Module,
    make_inputs: MakeInputs | None = None,
    *,
    batches: Sequence[int] = (1, 8),
    lengths: Sequence[int] = (32, 128),
    rounds: int = 30,
    seconds: float | int | None = None,
    new_tokens: int = 16,
    compiled: str | None = None,
    seed: int = 0,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """How much faster the cut model is, for every batch × length: plain data, as `speed.json` keeps it.

    Every round times a block of calls of the dense model, of the cut model, and of the dense model once
    more, in random order; ratios are taken within rounds, so what slows the machine down slows down all
    three. `ratio` is dense over cut time (above 1: faster) with the interval that a sign test leaves to its median.
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
        new_tokens: tokens that a model which generates writes where its generation is timed.
        compiled: mode of `torch.compile` that both models are timed under (`default`, `reduce-overhead`
            for CUDA graphs, `max-autotune`); None for neither.
        seed: of inputs, order and resampling.
        clock: tells the time in seconds; by default the device's own.

    Raises:
        BadInput: the models differ in kernel, dtype or device, or hooks are on them that would be timed too.

    >>> dense, cut = nn.Linear(64, 64), nn.Linear(64, 32)
    >>> make = lambda batch, length: {"input": torch.ones(batch, length, 64)}
    >>> found = compare_speed(dense, cut, make, batches=(1,), lengths=(8,), rounds=2)
    >>> found["rows"][0]["operation_ratio"]
    2.0
    """
    facts, clock = _alike(dense, cut), clock or clock_of(dense)
    allowed, dropped = fitting(dense, tuple(lengths))
    make = make_inputs or (lambda batch, length: inputs_to_time(dense, batch, length, seed))
    notes = [f"length {length} is more than the model's positions allow" for length in dropped]
    # Largest first: should the time run out, it is the setting that says most.
    grid = sorted(((b, n) for b in batches for n in allowed), key=lambda cell: (-cell[0] * cell[1], -cell[0]))
    budget = _Budget(seconds, generates(dense))
    with ready(dense), ready(cut):
        rows = _timed(dense, cut, grid, make, rounds, budget.grid, seed, clock, notes, compiled)
        largest = rows[0]
        inputs = dict(make(largest["batch"], largest["length"]))
        memory = {name: peak_memory(model, inputs) for name, model in (("dense", dense), ("cut", cut))}
        attention = attention_speed(dense, cut, inputs, rounds=rounds, seconds=budget.attention, seed=seed, clock=clock)
        generation = []
        if generates(dense) and make_inputs is None:
            length, count, more = _room(dense, largest["length"], new_tokens)
            notes += more
            written = [(batch, length, make(batch, length)) for batch in batches] if count > 1 else []
            generation = generation_speed(
                dense, cut, written, new_tokens=count, rounds=rounds, seconds=budget.generation, seed=seed, clock=clock
            )
    rows.sort(key=lambda row: (row["batch"], row["length"]))
    return {
        "schema": 1,
        "rows": rows,
        "parameters": {"dense": parameters(dense), "cut": parameters(cut)},
        "bytes": {"dense": size_in_bytes(dense), "cut": size_in_bytes(cut)},
        "operations": largest["operations"],
        "memory": memory,
        "attention": attention,
        "generation": generation,
        "drift": drift_of(rows),
        **facts,
        "compiled": compiled,
        "threads": torch.get_num_threads(),
        "seed": seed,
        "notes": notes,
    }


def _room(model: nn.Module, length: int, new_tokens: int) -> tuple[int, int, list[str]]:
    """Prompt and written tokens for which the model's positions suffice, and what has to be said about them."""
    room = room_to_write(model)
    count = new_tokens if room is None else min(new_tokens, room)
    left = room_to_write(model, length)
    prompt = length if left is None else length - max(count - left, 0)
    notes = [f"{count} tokens are written instead of {new_tokens}: there the model's positions end"]
    shorter = [f"generation is timed after {prompt} tokens instead of {length}, for {count} more to have positions"]
    return prompt, count, [*(notes if count < new_tokens else []), *(shorter if prompt < length else [])]


class _Budget:
    """Seconds for the grid, for the attention blocks alone and for generation."""

    def __init__(self, seconds: float | int | None, writes: bool) -> None:
        shares = (0.6, 0.15, 0.25) if writes else (0.8, 0.2, 0.0)
        self.grid, self.attention, self.generation = (None if seconds is None else seconds * s for s in shares)


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
    compiled: str | None,
) -> list[dict[str, Any]]:
    """A row per setting, in the order of the grid; settings that there is no time for go to `notes`."""
    generator = np.random.default_rng(seed)
    # Counted as they are; timed as they are used.
    first, second = (model if compiled is None else torch.compile(model, mode=compiled) for model in (dense, cut))
    began, sync = clock(), synchroniser(dense)
    rows: list[dict[str, Any]] = []
    for i, (batch, length) in enumerate(track(grid, label="timing both models")):
        left = None if seconds is None else seconds - (clock() - began)
        if rows and left is not None and left <= 0:
            notes.append(
                f"batch {batch} × length {length} was not timed: the {seconds:g} seconds for the grid were over"
            )
            continue
        share = None if left is None else left / (len(grid) - i)
        inputs = dict(make(batch, length))
        counted = [operations(model, inputs) for model in (dense, cut)]
        times = measure(partial(first, **inputs), partial(second, **inputs), sync, rounds, share, generator, clock)
        rows.append({"batch": batch, "length": length, **row_of(times, counted, seed)})
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


def drift_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the dense model against itself looked different anywhere: then the machine was not steady.

    >>> drift_of([{"batch": 1, "length": 8, "drift": {"low": 0.99, "high": 1.01}}])
    {'steady': True, 'unsteady': []}
    """
    off = [[row["batch"], row["length"]] for row in rows if not row["drift"]["low"] <= 1 <= row["drift"]["high"]]
    return {"steady": not off, "unsteady": off}
