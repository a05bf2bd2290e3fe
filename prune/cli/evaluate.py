"""`headwise evaluate`: how a checkpoint does on your texts, alone or against another; exit code 3 on limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.prune.cli.options import AsJson, Device, DtypeOption, Quiet, Revision, Seed, Trust
from headwise.prune.cli.terminal import complain, put_json, speaking, stdout, table

Candidate = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id, folder, or a run's folder (its checkpoint against its model).")
]
Against = Annotated[
    str | None, typer.Option(metavar="MODEL", help="What to compare with: the dense model, as my-model/.")
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", "-r", help="Texts, task and limits of this recipe; a run's own if left out.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: limits.drop=0.01.")
]
TextsFile = Annotated[
    Path | None,
    typer.Option(
        "--texts",
        help="What to judge on: a file, or a folder of images or clips. Half of it makes the task ready, unless a run "
        "or the recipe brings texts for that.",
    ),
]
LabelColumn = Annotated[str | None, typer.Option(help="The column of the label, by name or number: label.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of the text, by name or number: sentence.")]
PairColumn = Annotated[str | None, typer.Option(help="The column of the second text: sentence2.")]
Task = Annotated[
    str | None, typer.Option(help="Kind of task: causal-lm; chosen from checkpoint and texts if left out.")
]


def evaluate(
    model: Candidate,
    against: Against = None,
    recipe: RecipeOption = None,
    settings: Settings = None,
    texts: TextsFile = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    task: Task = None,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    seed: Seed = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge a checkpoint on texts that decide nothing; against another, with the drop and its uncertainty."""
    columns = {"text": text_column, "label": label_column, "pair": pair_column}
    source = {name: _column(value) for name, value in columns.items() if value is not None}
    given: dict[str, Any] = {
        "task.kind": task,
        "model.revision": revision,
        "model.dtype": dtype and dtype.value,
        "seed": seed,
    }
    changes = [*(settings or []), *said(given)]
    if source and texts is None:
        raise typer.BadParameter("columns go with --texts; in a recipe they stand beside the source")
    with speaking(quiet):
        from headwise.prune import judgement

        asked = {"source": str(texts), **source} if texts is not None else None
        pair = judgement.pair_of(model, against, recipe, changes, asked)
        found = judgement.evaluate(pair, device=device, trust_remote_code=trust_remote_code)
        if as_json:
            put_json(found)
        elif not quiet:
            stdout().print(table(judgement.facts_of(found), ["", ""], _lines(found)))
    if found["limits_broken"]:
        complain("limits broken: " + "; ".join(found["limits_broken"]))
        raise typer.Exit(3)


def said(options: dict[str, Any]) -> list[str]:
    """Options as changes of a recipe; JSON is YAML in one line, also for names with quotes or colons.

    >>> said({"seed": 3, "task.kind": None})
    ['seed=3']
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items() if value is not None]


def _column(value: str) -> str | int:
    return int(value) if value.lstrip("-").isdigit() else value


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to say, a line each."""
    accuracy = found["accuracy"]

    def interval(side: dict[str, Any]) -> str:
        return f"{_number(side['value'])} ({_number(side['low'])} to {_number(side['high'])})"

    texts = found["texts"]["evaluation"]
    read = f", from {texts['rows']} rows read" if "rows" in texts else ""
    lines = [("task", accuracy["kind"]), ("texts", f"{accuracy['n']} of {accuracy['rows']} drawn{read}")]
    if texts.get("truncated"):
        lines.append(("cut off", f"{texts['truncated']} texts, at the length that the model reads"))
    lines += [("left out in reading", f"{count}: {why}") for why, count in texts["skipped"].items()]
    lines += [("note", note) for note in texts["notes"]]
    lines += [("skipped", f"{count}: {why}") for why, count in accuracy["skipped"].items()]
    metric = accuracy["metric"]
    lines += [(metric, accuracy["meaning"])] if "meaning" in accuracy else []
    beside = {name: sides for name, sides in accuracy.get("beside", {}).items() if name != metric}
    if "cut" not in accuracy:
        alone = [(name, _number(sides["dense"])) for name, sides in beside.items()]
        return [*lines, (metric, interval(accuracy["dense"])), *alone]
    low, high = accuracy["interval"]
    return [
        *lines,
        (f"{metric}, compared with", interval(accuracy["dense"])),
        (f"{metric}, judged", interval(accuracy["cut"])),
        *((name, f"{_number(sides['dense'])}, then {_number(sides['cut'])}") for name, sides in beside.items()),
        ("drop", f"{_number(accuracy['drop'])} ({_number(low)} to {_number(high)})"),
        ("cannot be excluded", f"a drop of {_number(accuracy['upper'])}"),
        ("p", f"{_number(accuracy['p'])} ({accuracy['test']})"),
        ("flips", f"{accuracy['flips']['lost']} lost, {accuracy['flips']['gained']} gained"),
        ("size", f"{found['bytes']['cut'] / found['bytes']['dense']:.1%} of what it is compared with"),
        *_timed(found.get("speed")),
    ]


def _timed(speed: dict[str, Any] | None) -> list[tuple[str, str]]:
    return (
        [(f"speed, batch {row['batch']} × {row['length']}", f"{row['ratio']['median']:.3g}x") for row in speed["rows"]]
        if speed
        else []
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
