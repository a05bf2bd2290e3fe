"""The recipes that ship, by name; reading one needs no torch."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from headwise.prune.recipe_errors import Mistake, RecipeError, did_you_mean, printable
from headwise.prune.recipe_text import read_file


def shipped() -> list[str]:
    """The names of the recipes that ship.

    >>> "quickstart" in shipped()
    True
    """
    folder = files("headwise.recipes")
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def recipe_text(name_or_path: str | Path) -> tuple[str, str]:
    """The text of a recipe and what messages call it.

    Raises:
        RecipeError: neither a shipped recipe nor a readable file.

    >>> recipe_text("quickstart")[1]
    'recipes/quickstart.yaml'
    """
    name = str(name_or_path)
    names = shipped()
    if name in names:
        file = f"{name}.yaml"
        return files("headwise.recipes").joinpath(file).read_text(encoding="utf-8"), f"recipes/{file}"
    path = Path(name_or_path)
    if "\0" in name or not (path.suffix or path.exists()):
        problem = f"neither a file nor a shipped recipe{did_you_mean(name, names)}"
        raise RecipeError([Mistake((), problem, tuple(names), printable(name))], name)
    return read_file(path), name
