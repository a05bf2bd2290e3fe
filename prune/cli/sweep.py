"""`headwise sweep`: one recipe at several budgets, and what each costs and gains."""

from __future__ import annotations

from typing import Annotated

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
)
from headwise.prune.cli.prune import ModelOrRecipes, RecipeOption, Settings
from headwise.prune.cli.terminal import put, put_json, speaking, stdout, table

Budgets = Annotated[str, typer.Option("--budgets", help="Shares of the heads to remove: 0.1,0.2,0.4.")]


def sweep(
    recipe: RecipeOption,
    budgets: Budgets,
    model: ModelOrRecipes = None,
    settings: Settings = None,
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
    """Judge every budget on one greedy path; cut and time those that no other beats; draw the front."""
    if resume and output_dir is None:
        raise typer.BadParameter("--resume needs the --output-dir of the interrupted sweep")
    with speaking(quiet):
        from headwise.prune.cli.plan import load_recipe

        loaded = load_recipe(recipe, settings, model, revision, dtype and dtype.value, seed)
        from headwise.prune import sweep as walking
        from headwise.prune.inspection import run_folder

        target = output_dir or run_folder(loaded.model.id, "sweep")
        points = walking.sweep(
            loaded, _shares(budgets), target, overwrite=overwrite, resume=resume, device=device,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        if as_json:
            put_json({"sweep": str(target), "points": [{**p.__dict__, "folder": str(p.folder)} for p in points]})
        elif not quiet:
            rows = [
                (f"{p.fraction:g}", str(p.heads), f"{p.drop:.4f}", "" if p.upper is None else f"{p.upper:.4f}",
                 "yes" if p.chosen else "")
                for p in points
            ]  # fmt: skip
            heading = ["budget", ">heads gone", ">drop", ">not excluded", "cut and timed"]
            stdout().print(table("budgets", heading, rows))
            put(f"sweep: {target}")


def _shares(text: str) -> list[float]:
    from headwise.analysis.errors import BadInput

    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise BadInput(f"--budgets: got {text!r}, expected shares of the heads, as 0.1,0.2,0.4") from error
