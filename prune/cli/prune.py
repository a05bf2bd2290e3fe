"""`headwise prune`: the whole run by a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.prune.cli.options import (
    AsJson,
    Device,
    DtypeOption,
    OutputDir,
    Overwrite,
    Quiet,
    Resume,
    Revision,
    Seed,
    Trust,
    resumable,
)
from headwise.prune.cli.terminal import complain, note, put, put_json, speaking, stdout, table

ModelOrRecipes = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Hub id or folder; the recipe's model.id if left out.")
]
RecipeOption = Annotated[str, typer.Option("--recipe", "-r", help="A shipped recipe's name, or a file.")]
Source = Annotated[
    str | None, typer.Option(metavar="SOURCE", help="What decides: texts, images or clips; a file, folder or data set.")
]
Judging = Annotated[
    str | None, typer.Option(metavar="SOURCE", help="What judges; the recipe's, or half of what decides, if left out.")
]
TextColumn = Annotated[str | None, typer.Option(help="The column of the text, by name or number, in both: sentence.")]
LabelColumn = Annotated[str | None, typer.Option(help="The column of the label: label.")]
PairColumn = Annotated[str | None, typer.Option(help="The column of the second text: sentence2.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: remove.fraction=0.5; may be repeated."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Check the recipe against the model and say what it would take; no weights."),
]


def prune(
    model: ModelOrRecipes = None,
    recipe: RecipeOption = "reconstruction",
    calibration: Source = None,
    evaluation: Judging = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Analyse, remove heads by a recipe, prove the cut, measure accuracy and speed before and after, report."""
    chosen = {
        "model.id": model,
        "model.revision": revision,
        "model.dtype": dtype and dtype.value,
        "seed": seed,
    }
    columns = {"text": text_column, "label": label_column, "pair": pair_column}
    # Sources come first, so that --set can say more of them; the other options last: they say more than the file.
    changes = [*_said(_data_of(calibration, evaluation, columns)), *(settings or []), *_said(chosen)]
    resumable(resume, output_dir, "run")
    if dry_run:
        if output_dir is not None and not resume:
            from headwise.prune.folder import check_target

            check_target(output_dir, model, overwrite=overwrite)
        _dry_run(recipe, changes, trust_remote_code=trust_remote_code, as_json=as_json, quiet=quiet)
        return
    run_recipe(
        recipe,
        changes,
        device=device,
        trust_remote_code=trust_remote_code,
        output_dir=output_dir,
        overwrite=overwrite,
        resume=resume,
        as_json=as_json,
        quiet=quiet,
    )


def _data_of(calibration: str | None, evaluation: str | None, columns: Mapping[str, str | None]) -> dict[str, Any]:
    """What decides and judges as changes of a recipe: a new source brings columns of its own."""
    named = {key: _column(value) for key, value in columns.items() if value is not None}
    found: dict[str, Any] = {}
    if calibration is not None:
        # A split or columns of the recipe's own source are not those of another.
        found["data.calibration"] = {"source": calibration, **named}
    elif named:
        raise typer.BadParameter("columns go with --calibration; in a recipe they stand beside the source")
    if evaluation is not None:
        found["data.evaluation"] = {"source": evaluation, **named}
    return found


def _said(options: Mapping[str, Any]) -> list[str]:
    """Options as changes of a recipe; JSON is YAML in one line, also for a name with quotes or colons in it."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items() if value is not None]


def _column(value: str) -> str | int:
    return int(value) if value.lstrip("-").isdigit() else value


def run_recipe(
    recipe: str,
    changes: Sequence[str],
    *,
    device: str | None = None,
    trust_remote_code: bool = False,
    output_dir: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Run a recipe and print what came of it.

    Raises:
        typer.Exit: with code 3, if the recipe's limits are broken.
    """
    with speaking(quiet):
        loaded = _load(recipe, changes)
        from headwise.prune.cli.summary import broken_limits, summary, summary_table
        from headwise.prune.pipeline import run

        done = run(
            loaded,
            output_dir=output_dir,
            overwrite=overwrite,
            resume=resume,
            device=device,
            trust_remote_code=trust_remote_code,
        )
        if as_json:
            put_json(summary(done.folder))
        elif not quiet:
            stdout().print(summary_table(done.folder))
            put(f"run: {done.folder}")
            put(f"report: {done.folder / 'report.html'}")
            found = summary(done.folder)
            if "meaning" in found["accuracy"]:
                note(f"{found['accuracy']['metric']}: {found['accuracy']['meaning']}")
            for line in found["speed"].get("notes", ()):
                note(f"speed: {line}")
        broken = broken_limits(done.folder)
    if broken:
        complain("limits broken: " + "; ".join(broken) + f"\nThe run is written all the same: {done.folder}")
        raise typer.Exit(3)


def _load(recipe: str, changes: Sequence[str]) -> Any:
    from headwise.analysis.errors import BadInput
    from headwise.prune.recipe import Recipe

    loaded = Recipe.load(recipe, changes)
    if loaded.model.id is None:
        raise BadInput("no model: give MODEL on the command line, or model.id in the recipe")
    return loaded


def _dry_run(recipe: str, changes: Sequence[str], *, trust_remote_code: bool, as_json: bool, quiet: bool) -> None:
    with speaking(quiet):
        loaded = _load(recipe, changes)
        from headwise.prune.pipeline import dry_run

        found = dry_run(loaded, trust_remote_code=trust_remote_code)
        if as_json:
            put_json(found)
        elif not quiet:
            stdout().print(table("what the recipe would do", ["", ""], _lines(_for_people(found))))


def _for_people(found: Mapping[str, Any]) -> dict[str, Any]:
    """The forecast without what only programs read, and its seconds as a duration."""
    shown = {name: value for name, value in found.items() if name != "bytes" and value is not None}
    time = dict(shown.get("time", {}))
    if "seconds_about" in time:
        time["about"] = duration(float(time.pop("seconds_about")))
    return shown | ({"time": time} if time else {})


def duration(seconds: float | int) -> str:
    """Seconds as people say them.

    >>> duration(42.1), duration(600), duration(7_500), duration(1_200_000)
    ('42 s', '10 min', '2.1 h', '14 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def _lines(found: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """(what, value) for every leaf."""
    lines: list[tuple[str, str]] = []
    for key, value in found.items():
        name = f"{above} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            lines += _lines(value, name)
        elif isinstance(value, list | tuple):
            lines.append((name, ", ".join(map(str, value))))
        else:
            lines.append((name, str(value)))
    return lines
