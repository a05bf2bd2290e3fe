"""`headwise cut`: a plan applied – heads are gone, the checkpoint is proven, saved and loads again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Device, DtypeOption, Model, OutputDir, Overwrite, Quiet, Revision, Trust
from headwise.prune.cli.terminal import put, put_json, speaking

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json, as `headwise plan` writes it, or edited.")]
RepairBy = Annotated[
    str | None,
    typer.Option("--recipe", "-r", help="Repair and train what is left as this recipe says, on its calibration texts."),
]


def cut(
    model: Model,
    plan: PlanFile,
    recipe: RepairBy = None,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Remove the heads that a plan names, prove it, and save the checkpoint."""
    with speaking(quiet):
        from headwise.prune.applying import apply_plan
        from headwise.prune.cli.plan import load_recipe
        from headwise.prune.folder import check_target
        from headwise.prune.inspection import run_folder
        from headwise.prune.plan import Plan

        read = Plan.load(plan)
        target = output_dir or run_folder(model, "cut")
        check_target(target, model, overwrite=overwrite)
        name = dtype.value if dtype is not None else None
        loaded = None if recipe is None else load_recipe(recipe, None, model, revision, name, None)
        done = apply_plan(
            model, read, target, where=str(plan), recipe=loaded, revision=revision, dtype=name or "auto", device=device,
            trust_remote_code=trust_remote_code, overwrite=overwrite,
        )  # fmt: skip
        if as_json:
            put_json(done)
        elif not quiet:
            put(f"heads removed: {done['heads_removed']}; parameters: {done['parameters']['cut']:,}")
            put(f"gate and cut differ by {done['proof']['worst']:.1e} at most (limit {done['proof']['limit']:.0e})")
            put(f"checkpoint: {target}")
