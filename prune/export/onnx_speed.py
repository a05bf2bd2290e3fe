"""Speed of exported files: two ONNX models timed side by side in onnxruntime."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.progress import track
from headwise.prune.export.onnx_runtime import onnxruntime
from headwise.prune.judgement import too_slow
from headwise.prune.recipe import Recipe
from headwise.prune.speed import drift_of
from headwise.prune.speed.timing import Clock, measure, row_of

_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32,
          "tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(bool)": np.bool_}  # fmt: skip


def is_onnx(name: str | None) -> bool:
    """Whether a model is named by an ONNX file.

    >>> is_onnx("small.onnx"), is_onnx("bert-base-uncased")
    (True, False)
    """
    return name is not None and name.endswith(".onnx")


@dataclass(frozen=True)
class Exported:
    """An ONNX file, ready to run.

    Attributes:
        name: the file.
        session: of onnxruntime, on the CPU.
        facts: what `to_onnx` wrote into the file beside the graph; {} for a file from elsewhere.
    """

    name: str
    session: Any
    facts: Mapping[str, Any]

    def inputs(self, batch: int, length: int, seed: int) -> dict[str, np.ndarray]:
        """Full rows of ordinary token ids, or noise, in the shapes that the file takes."""
        generator = np.random.default_rng(seed)
        most = int(self.facts.get("vocabulary") or 2)
        found: dict[str, np.ndarray] = {}
        for entry in self.session.get_inputs():
            dims = [size if isinstance(size, int) else length for size in entry.shape]
            shape = (batch, *dims[1:]) if dims else ()
            kind = _TYPES.get(entry.type)
            if kind is None:
                raise BadInput(f"{self.name}: its input {entry.name} is {entry.type}, which cannot be made up")
            if np.issubdtype(kind, np.floating):
                found[entry.name] = generator.standard_normal(shape).astype(kind)
            elif "mask" in entry.name:
                found[entry.name] = np.ones(shape, dtype=kind)
            else:
                found[entry.name] = generator.integers(min(1, most - 1), most, shape).astype(kind)
        return found

    def operations(self, batch: int, length: int) -> int | None:
        """Operations of a forward pass by what the file says: a constant, a part a token, a part a pair of tokens."""
        parts = self.facts.get("operations")
        if not parts:
            return None
        return round(batch * sum(float(part) * float(length) ** power for power, part in enumerate(parts)))


def opened(file: str, threads: int | None = None) -> Exported:
    """An ONNX file in onnxruntime.

    Raises:
        BadInput: no such file, no onnxruntime, or not an ONNX model.

    >>> opened("/no-such.onnx")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: /no-such.onnx: no such file
    """
    if not Path(file).is_file():
        raise BadInput(f"{file}: no such file")
    try:
        runtime = onnxruntime()
    except ImportError as error:
        raise BadInput("timing an ONNX file needs onnxruntime: pip install 'headwise[export]'") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or torch.get_num_threads(), 1
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for each way to fail
        raise BadInput(f"{file}: onnxruntime cannot open it ({first_line(error)})") from error
    said = session.get_modelmeta().custom_metadata_map
    facts: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        facts = {n.removeprefix("headwise."): json.loads(v) for n, v in said.items() if n.startswith("headwise.")}
    return Exported(str(file), session, facts)


def compare_files(
    dense: Exported,
    cut: Exported,
    *,
    batches: Sequence[int] = (1, 8),
    lengths: Sequence[int] = (32, 128),
    rounds: int = 30,
    seconds: float | int | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """How much faster the second file is, in the form of `compare_speed`; what only a live model tells is None.

    Args:
        dense: the file before.
        cut: the file after; the same one for how fast it is alone.
        batches: texts at once.
        lengths: tokens a text; those that the file does not allow are left out.
        rounds: of a block of calls each, in random order.
        seconds: the most that it may take, roughly.
        seed: of inputs, order and resampling.
        clock: tells the time in seconds.

    Raises:
        BadInput: the files take different inputs.
    """
    names = [[entry.name for entry in one.session.get_inputs()] for one in (dense, cut)]
    if names[0] != names[1]:
        raise BadInput(f"{dense.name} takes {', '.join(names[0])}, {cut.name} takes {', '.join(names[1])}")
    most = dense.facts.get("max_length")
    allowed = [length for length in lengths if most is None or length <= most] or [int(most or lengths[0])]
    notes = [f"length {n} is more than the model's positions allow" for n in lengths if n not in allowed]
    grid = sorted(((b, n) for b in batches for n in allowed), key=lambda cell: -cell[0] * cell[1])
    generator, began = np.random.default_rng(seed), clock()
    rows: list[dict[str, Any]] = []
    for i, (batch, length) in enumerate(track(grid, label="timing both files")):
        left = None if seconds is None else seconds - (clock() - began)
        if rows and left is not None and left <= 0:
            notes.append(f"batch {batch} × length {length} was not timed: the {seconds:g} seconds were over")
            continue
        feed = dense.inputs(batch, length, seed)
        counted = [one.operations(batch, length) or 0 for one in (dense, cut)]
        calls = [partial(one.session.run, None, feed) for one in (dense, cut)]
        share = None if left is None else left / (len(grid) - i)
        times = measure(calls[0], calls[1], lambda: None, rounds, share, generator, clock)
        rows.append({"batch": batch, "length": length, **row_of(times, counted, seed)})
    rows.sort(key=lambda row: (row["batch"], row["length"]))
    sides = {"dense": dense, "cut": cut}
    unknown: dict[str, int | None] = {"dense": None, "cut": None}
    return {
        "schema": 1, "rows": rows,
        "parameters": {side: one.facts.get("parameters") for side, one in sides.items()},
        "bytes": {side: _bytes(Path(one.name)) for side, one in sides.items()},
        "memory": unknown, "attention": None, "generation": [], "drift": drift_of(rows),
        "runtime": "onnxruntime", "kernel": None, "device": "cpu", "dtype": None, "compiled": None,
        "threads": dense.session.get_session_options().intra_op_num_threads, "seed": seed, "notes": notes,
    }  # fmt: skip


def time_files(model: str, against: str | None, recipe: Recipe, *, threads: int | None = None) -> dict[str, Any]:
    """Two ONNX files timed by a recipe's grid, or one against itself, in the form of `judgement.time_models`.

    Args:
        model: the file that is timed.
        against: the file that it is compared with.
        recipe: its `speed`, `limits.speedup` and `seed` count.
        threads: of onnxruntime; as many as torch takes by default.

    Raises:
        BadInput: one of the two is no ONNX file, cannot be opened, or takes other inputs.
    """
    if not is_onnx(model) or (against is not None and not is_onnx(against)):
        raise BadInput(f"{model} against {against}: an ONNX file is timed against another ONNX file")
    files = [opened(name, threads) for name in (against or model, model)]
    grid = recipe.speed
    speed = compare_files(
        *files, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds, seed=recipe.seed
    )
    broken = too_slow(speed, recipe.limits.speedup) if against is not None else []
    against_facts = {"id": against} if against is not None else None
    return {"model": {"id": model}, "against": against_facts, "speed": speed, "limits_broken": broken}


def _bytes(file: Path) -> int:
    """Of the file and the weights beside it."""
    beside = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)
