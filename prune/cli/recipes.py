"""`headwise recipes`: list, show, check, and the format's schema."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwise.prune.cli.options import AsJson, Quiet
from headwise.prune.cli.terminal import complain, put, put_json, stdout, table

app = typer.Typer(help="List, show and check recipes.", no_args_is_help=False)
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for `headwise prune`.")]


@app.command("list")
def list_recipes(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """The recipes that ship."""
    from headwise.prune.recipe_text import read
    from headwise.prune.shipped import recipe_text, shipped

    rows = [(name, str(read(*recipe_text(name)).data.get("description", ""))) for name in shipped()]
    if as_json:
        put_json([{"name": name, "description": description} for name, description in rows])
    elif not quiet:
        stdout().print(table("", ["recipe", "what it does"], rows))


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe, or a file.")]) -> None:
    """The text of a recipe: a start for one of your own."""
    from headwise.prune.shipped import recipe_text

    for line in recipe_text(name)[0].splitlines():
        put(line)


@app.command()
def check(
    recipes: Annotated[list[str], typer.Argument(metavar="FILE…", help="Recipe files, or names of shipped ones.")],
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Every mistake of every recipe, each with its line; exit code 2 if there is one."""
    from headwise.prune.recipe_errors import RecipeError
    from headwise.prune.recipe import Recipe  # isort: skip

    found: list[dict[str, Any]] = []
    for recipe in recipes:
        try:
            Recipe.load(recipe, settings or [])
        except RecipeError as error:
            complain(str(error))
            found.append({"recipe": recipe, "mistakes": [mistake.line() for mistake in error.mistakes]})
        else:
            found.append({"recipe": recipe, "mistakes": []})
            if not quiet and not as_json:
                put(f"{recipe}: no mistakes")
    if as_json:
        put_json(found)
    if any(one["mistakes"] for one in found):
        raise typer.Exit(2)


@app.command()
def schema() -> None:
    """The recipe format as JSON Schema, for editors and other programs."""
    from headwise.prune.recipe import Recipe

    for line in Recipe.schema_json().splitlines():
        put(line)
