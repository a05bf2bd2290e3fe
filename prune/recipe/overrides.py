"""`--set key=value`: changes to a recipe from the command line, under the same checks as the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.prune.recipe_errors import Mistake, RecipeError, printable, shown
from headwise.prune.recipe_text import Source, read_value


def override(source: Source, settings: Sequence[str]) -> None:
    """Change `source` by settings such as `remove.fraction=0.5`, in order; mistakes join its own.

    >>> from headwise.prune.recipe_text import read
    >>> source = read("score: {kind: magnitude, norm: 2}")
    >>> override(source, ["score.kind=random", "seed=3"])
    >>> source.data
    {'score': {'kind': 'random'}, 'seed': 3}
    """
    for setting in settings:
        place = f"--set {printable(setting, 80)}"
        key, equals, text = setting.partition("=")
        path = _path(key)
        if not equals or not all(path):
            problem = "expected key=value, as in --set remove.fraction=0.5"
            source.mistakes.append(Mistake((), problem, place=place))
            continue
        try:
            value = read_value(text, place)
        except RecipeError as error:
            source.mistakes += [Mistake((*path, *m.path), m.problem, m.valid, place) for m in error.mistakes]
            continue
        _put(source, path, value, place)


def _path(key: str) -> tuple[str, ...]:
    """The path that a dotted key means; a site's name keeps its dots: `keep.heads.decoder.self.0`."""
    parts = key.strip().split(".")
    if parts[:2] == ["keep", "heads"] and len(parts) > 2:
        return ("keep", "heads", ".".join(parts[2:]))
    return tuple(parts)


def _put(source: Source, path: tuple[str, ...], value: Any, place: str) -> None:
    block: dict[str, Any] = source.data
    for depth, part in enumerate(path[:-1], start=1):
        inner = block.get(part)
        if inner is None:
            inner = block[part] = {}
            source.places.lines[path[:depth]] = place
        if not isinstance(inner, dict):
            problem = f"cannot be set: {'.'.join(map(printable, path[:depth]))} is {shown(inner)}, no mapping"
            source.mistakes.append(Mistake(path, problem, place=place))
            return
        block = inner
    rival = _rival(source, block, path)
    if rival:
        told = source.places.of((*path[:-1], rival))
        problem = f"{told} says another {path[0]} already, and only one can hold; leave one of the two out"
        source.mistakes.append(Mistake(path, problem, place=place))
        return
    _make_room(source, block, path, value)
    block[path[-1]] = value
    stale = [known for known in source.places.lines if known[: len(path)] == path]
    for known in stale:
        del source.places.lines[known]
    source.places.lines[path] = place
    source.lost -= {lost for lost in source.lost if lost[: len(path)] == path}
    source.mistakes[:] = [m for m in source.mistakes if m.path[: len(path)] != path]


#: Blocks that state one of several things, and the names of those; what else stands there belongs to one of them.
_ONE_OF: dict[tuple[str, ...], tuple[str, ...]] = {
    ("remove",): ("heads", "fraction", "parameters", "operations", "cache"),
    ("reach",): ("drop", "milliseconds"),
}


def _rival(source: Source, block: dict[str, Any], path: tuple[str, ...]) -> str:
    """The other budget or result that an earlier `--set` asked for, where this one asks for another; "" if none."""
    names = _ONE_OF.get(path[:-1], ())
    others = [name for name in names if name != path[-1] and name in block] if path[-1] in names else []
    return next((name for name in others if source.places.of((*path[:-1], name)).startswith("--set")), "")


def _make_room(source: Source, block: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Another kind, budget or result to reach replaces what the recipe said: its settings mean nothing any more."""
    another_kind = path[-1] == "kind" and block.get("kind") != value
    names = _ONE_OF.get(path[:-1], ())
    another_result = path[-1] in names and bool({*names} & {*block} - {path[-1]})
    if another_kind or another_result:
        # What was set by name beside it stays, in whatever order it was said.
        set_too = {key for key in block if source.places.lines.get((*path[:-1], key), "").startswith("--set")}
        for key in {*block} - set_too:
            del block[key]
