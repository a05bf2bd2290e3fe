"""`headwise sweep`: one recipe at several budgets, and what each costs and gains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
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
from headwise.prune.cli.prune import ModelOrRecipes, RecipeOption, Settings
from headwise.prune.cli.terminal import put, put_json, speaking, stdout, table

Which = Annotated[
    str,
    typer.Option("--cut", help="Budgets to cut and time: front (those that no other beats), all, none, or 0.2,0.4."),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        help="Processes that judge, or train, budgets at a time, such as 2; the numbers are the same.",
    ),
]
Budgets = Annotated[str, typer.Option("--budgets", help="Shares of the heads to remove: 0.1,0.2,0.4.")]


def sweep(
    recipe: RecipeOption,
    budgets: Budgets,
    model: ModelOrRecipes = None,
    settings: Settings = None,
    which: Which = "front",
    jobs: Jobs = 1,
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
    """Judge every budget on one greedy path; cut, train if the recipe says so, and time those that no other beats."""
    resumable(resume, output_dir, "sweep")
    with speaking(quiet):
        from headwise.prune.cli.plan import load_recipe

        loaded = load_recipe(recipe, settings, model, revision, dtype and dtype.value, seed)
        from headwise.prune import sweep as walking
        from headwise.prune.inspection import run_folder

        target = output_dir or run_folder(loaded.model.id, "sweep")
        cut: Any = which if which in ("front", "all", "none") else _shares(which, "--cut")
        points = walking.sweep(
            loaded, _shares(budgets, "--budgets"), target, which=cut, jobs=jobs, overwrite=overwrite, resume=resume,
            device=device, trust_remote_code=trust_remote_code,
        )  # fmt: skip
        if as_json:
            found = [{**asdict(p), "folder": str(p.folder)} for p in points]
            put_json({"sweep": str(target), **_judged_by(target), "points": found})
        elif not quiet:
            judged_by = _judged_by(target)
            heading, rows = _table(points, judged_by["metric"])
            stdout().print(table("", heading, rows))
            if "meaning" in judged_by:
                put(f"{judged_by['metric']}: {judged_by['meaning']}")
            put(f"sweep: {target}")
            put(f"page: {target / 'sweep.html'}")


def _table(points: Sequence[Any], metric: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """What came out at each budget, as people read it; where budgets were trained, before and after."""
    from headwise.prune.report.formats import unit

    trained = any(p.recovered is not None for p in points)
    rows = [
        (f"{p.fraction:g}", str(p.heads), *_figures(p, metric), *(_figures(p.recovered, metric) if trained else ()),
         "yes" if p.front else "", _speed(p.folder))
        for p in points
    ]  # fmt: skip
    names = [">budget", ">heads gone", f">{metric}", f">drop, {unit(metric)}", ">cannot exclude", "front", "speed"]
    if trained:
        names[2:5] = [f">{metric}, before", *names[3:5], ">trained", ">drop", ">cannot exclude"]
    return names, rows


def _figures(found: Any, metric: str) -> tuple[str, ...]:
    from headwise.prune.report.formats import in_metric, in_points

    if found is None:
        return ("not cut", "", "")
    return in_metric(found.value, metric), in_points(found.drop, metric), in_points(found.upper, metric)


def _judged_by(target: Path) -> dict[str, str]:
    """The metric, and what it says where no labels stand behind it."""
    found = json.loads((target / "sweep.json").read_text(encoding="utf-8"))
    return {name: str(found[name]) for name in ("metric", "meaning") if name in found}


def _speed(folder: Path) -> str:
    """The speed-up at the largest setting, or that the budget was not cut."""
    path = folder / "speed.json"
    if not path.exists():
        return "not cut"
    from headwise.prune.report.doubt import doubt
    from headwise.prune.report.gain import leading_row

    row = leading_row(json.loads(path.read_text(encoding="utf-8")))
    ratio, why = row["ratio"], doubt(row)
    where = f"batch {row['batch']} × {row['length']} tokens"
    return f"{ratio['median']:.2f}× ({ratio['low']:.2f} to {ratio['high']:.2f}), {where}{f', {why}' if why else ''}"


def _shares(text: str, option: str) -> list[float]:
    from headwise.analysis.errors import BadInput

    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise BadInput(f"{option}: got {text!r}, expected shares of the heads, as 0.1,0.2,0.4") from error
