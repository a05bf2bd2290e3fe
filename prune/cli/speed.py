"""`headwise speed`: how fast a checkpoint runs, alone or against another; exit code 3 on limits."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from headwise.analysis.errors import BadInput
from headwise.prune.cli.evaluate import Against, Candidate, RecipeOption, Settings, said
from headwise.prune.cli.options import AsJson, Device, DtypeOption, Quiet, Revision, Seed, Trust
from headwise.prune.cli.terminal import complain, put, put_json, speaking, stdout, table


class Compiled(StrEnum):
    """Modes of `torch.compile`."""

    default = "default"
    reduce_overhead = "reduce-overhead"
    max_autotune = "max-autotune"


Batches = Annotated[str | None, typer.Option(metavar="N,N…", help="Texts a batch: 1,8.")]
Lengths = Annotated[str | None, typer.Option(metavar="N,N…", help="Tokens a text: 32,128.")]
Rounds = Annotated[
    int | None, typer.Option(min=3, help="Rounds in each setting, such as 30; fewer than six tell no difference.")
]
Seconds = Annotated[int | None, typer.Option(min=1, help="The most that timing may take, roughly, such as 60.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice if left out.")]
Kernel = Annotated[str | None, typer.Option(help="Attention kernel of both: eager, sdpa, flash_attention_2.")]
Compile = Annotated[
    Compiled | None, typer.Option("--compile", help="Time both under torch.compile; reduce-overhead: CUDA graphs.")
]
NewTokens = Annotated[int, typer.Option(min=2, help="Tokens that a model which generates writes, such as 16.")]


def speed(
    model: Candidate,
    against: Against = None,
    recipe: RecipeOption = None,
    settings: Settings = None,
    batches: Batches = None,
    lengths: Lengths = None,
    rounds: Rounds = None,
    seconds: Seconds = None,
    threads: Threads = None,
    kernel: Kernel = None,
    compile_mode: Compile = None,
    new_tokens: NewTokens = 16,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    seed: Seed = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time a checkpoint on a batch × length grid; against another, side by side, with intervals and drift.

    Two ONNX files are timed in onnxruntime.
    """
    given: dict[str, Any] = {
        "speed.batches": _numbers("--batches", batches), "speed.lengths": _numbers("--lengths", lengths),
        "speed.rounds": rounds, "speed.seconds": seconds, "model.dtype": dtype and dtype.value, "seed": seed,
        "model.revision": revision,
    }  # fmt: skip
    with speaking(quiet):
        from headwise.prune import judgement
        from headwise.prune.export.onnx_speed import is_onnx, time_files

        pair = judgement.pair_of(model, against, recipe, [*(settings or []), *said(given)])
        if is_onnx(pair.model) or is_onnx(pair.against):
            _refuse_for_files(
                kernel=kernel, compile=compile_mode, device=device if device != "cpu" else None, dtype=dtype
            )
            found = time_files(pair.model, pair.against, pair.recipe, threads=threads)
        else:
            found = judgement.time_models(
                pair,
                kernel=kernel,
                threads=threads,
                compiled=compile_mode and compile_mode.value,
                new_tokens=new_tokens,
                device=device,
                trust_remote_code=trust_remote_code,
            )
        if as_json:
            put_json(found)
        elif not quiet:
            _show(judgement.facts_of(found), found["speed"], alone=found["against"] is None)
    if found["limits_broken"]:
        complain("limits broken: " + "; ".join(found["limits_broken"]))
        raise typer.Exit(3)


def _refuse_for_files(**given: object) -> None:
    """Return if nothing was asked that an exported file cannot do any more.

    Raises:
        BadInput: something was.
    """
    useless = [f"--{name}" for name, value in given.items() if value is not None]
    if useless:
        raise BadInput(f"{', '.join(useless)}: not for ONNX files, which onnxruntime runs on the CPU as they are")


def _numbers(option: str, value: str | None) -> list[int] | None:
    """The numbers of a comma-separated list.

    Raises:
        BadInput: something in it is no number.
    """
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadInput(f"{option}: got {value!r}, expected numbers with commas between them, such as 1,8")
    return [int(part) for part in parts]


def _show(title: str, speed: Mapping[str, Any], *, alone: bool) -> None:
    from headwise.prune.report.timings import conditions

    rows = [_row("forward", row, alone) for row in speed["rows"]]
    if speed["attention"]:
        rows.append(_row("attention blocks alone", {**speed["attention"], "batch": "", "length": ""}, alone))
    for row in speed["generation"]:
        place = {"batch": row["batch"], "length": row["length"]}
        rows.append(_row("first token", {**row["prefill"], **place}, alone))
        rows.append(_row("each further token", {**row["decode"], **place}, alone))
    columns = [
        "",
        ">batch",
        ">tokens",
        *([">ms"] if alone else [">against, ms", ">ms", "faster", ">operations predict"]),
    ]
    stdout().print(table(title, columns, rows))
    memory, sides = speed["memory"], ("cut",) if alone else ("dense", "cut")
    put(conditions(speed))
    put(f"parameters: {_change(speed['parameters'], sides)}")
    if memory["cut"] is not None:
        put(f"peak memory of a forward pass beside the weights: {_change(memory, sides)} bytes")
    for row in speed["generation"]:
        cache = _change(row["cache_bytes"], sides)
        pace = " -> ".join(f"{row['tokens_per_second'][side]:.1f}" for side in sides)
        put(f"batch {row['batch']}: {pace} tokens/s, cache {cache} bytes")
    if not speed["drift"]["steady"]:
        put("the machine was not steady: the same model against itself looked different")
    for note in speed["notes"]:
        put(note)


def _change(values: Mapping[str, int | None], sides: tuple[str, ...]) -> str:
    return " -> ".join("unknown" if values[side] is None else f"{values[side]:,}" for side in sides)


def _row(what: str, row: Mapping[str, Any], alone: bool) -> list[object]:
    place = [what, row["batch"], row["length"]]
    if alone:
        return [*place, f"{row['cut_ms']['median']:.2f}"]
    from headwise.prune.report.doubt import doubt

    ratio, predicted = row["ratio"], row.get("operation_ratio")
    faster = f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
    if not row["significant"]:
        faster += f", {doubt(row)}"
    times = [f"{row[side]['median']:.2f}" for side in ("dense_ms", "cut_ms")]
    return [*place, *times, faster, f"{predicted:.2f}x" if predicted else ""]
