"""`headwise plan`: the decision alone, as a file to read and to edit; no weight changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.prune.cli.options import AsJson, Device, DtypeOption, Overwrite, Quiet, Revision, Seed, Trust
from headwise.prune.cli.prune import ModelOrRecipes, RecipeOption, Settings
from headwise.prune.cli.terminal import put, put_json, speaking, stdout, table

Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write, such as mine.json.")]


def plan(
    recipe: RecipeOption,
    model: ModelOrRecipes = None,
    output: Output = Path("plan.json"),
    settings: Settings = None,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Decide by a recipe which heads should go, and write that down; `headwise cut` applies it."""
    with speaking(quiet):
        loaded = load_recipe(recipe, settings, model, revision, dtype and dtype.value, seed)
        from headwise.analysis.errors import BadInput
        from headwise.prune.deciding import decide
        from headwise.prune.folder import new_file, told, way_to
        from headwise.prune.growth import tell_growth
        from headwise.prune.preparing import prepare

        if output.exists() and not overwrite:
            raise BadInput(f"{output} exists and is left as it is; choose another --output, or say --overwrite")
        ready = prepare(loaded, device=device, trust_remote_code=trust_remote_code)
        made = decide(loaded, ready.calibration, ready.evidence, ready.made, ready.judge, ready.latency)
        tell_growth(ready.opened.model, ready.calibration.sites, made.remove)
        with told(output), way_to(output), new_file(output) as path:
            made.save(path)
            if ready.latency is not None:
                ready.latency.save(path.with_name(f"{output.stem}.latency.json"))
        if as_json:
            put_json(json.loads(output.read_text(encoding="utf-8")))
        elif not quiet:
            rows = [(site, ", ".join(map(str, heads))) for site, heads in made.remove.items()]
            stdout().print(table(f"{made.count} heads go", ["site", "heads"], rows))
            put(f"plan: {output}")


def load_recipe(
    recipe: str,
    settings: list[str] | None,
    model: str | None,
    revision: str | None,
    dtype: str | None,
    seed: int | None,
) -> Any:
    """The recipe with what the command line says about it.

    Raises:
        BadInput: mistakes in the recipe, or no model.
    """
    from headwise.analysis.errors import BadInput
    from headwise.prune.recipe import Recipe

    chosen = {"model.id": model, "model.revision": revision, "model.dtype": dtype, "seed": seed}
    said = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in chosen.items() if value is not None]
    loaded = Recipe.load(recipe, [*(settings or []), *said])
    if loaded.model.id is None:
        raise BadInput("no model: give MODEL on the command line, or model.id in the recipe")
    return loaded
