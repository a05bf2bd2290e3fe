"""Read a run folder: the files as they stand, with one clear error where one cannot be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.prune.plan import Plan
from headwise.prune.recipe_errors import RecipeError
from headwise.prune.recipe_text import read, read_file
from headwise.prune.report.axes import check_arrays, check_heads
from headwise.prune.report.shapes import check_shape


@dataclass(frozen=True)
class Folder:
    """The contents of a run folder; `{}` stands for a file that is not there."""

    name: str
    path: Path | str
    heads: tuple[tuple[str, int], ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    compensation: Mapping[str, Any] = field(default_factory=dict)
    recovery: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)
    stability: Mapping[str, Any] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    drift: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipe_text: str = ""
    checkpoint: frozenset[str] = frozenset()

    def array(self, name: str) -> np.ndarray | None:
        """The evidence array of that name as float64, or None."""
        found = self.arrays.get(name)
        return None if found is None else np.asarray(found, dtype=np.float64)


def read_folder(path: Path) -> Folder:
    """The run folder's contents.

    Args:
        path: a folder written by `headwise prune` or `headwise analyze`.

    Raises:
        BadInput: the folder is missing, is no run folder, or one of its files cannot be read.

    >>> read_folder(Path("no-such-run"))
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: no-such-run: no such folder; give the folder of a finished run
    """
    path = Path(path)
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder; give the folder of a finished run")
    if not (path / "evidence" / "evidence.json").is_file() and not (path / "plan.json").is_file():
        raise BadInput(
            f"{path}: neither evidence/evidence.json nor plan.json is in it; "
            "give the folder that `headwise prune` or `headwise analyze` printed"
        )
    plan = _plan(path / "plan.json")
    measured = (path / "evidence" / "evidence.json").is_file()
    evidence = _evidence(path / "evidence") if measured else Evidence(_heads_of_plan(plan))
    check_heads(path, plan.get("remove", {}), evidence.heads)
    recipe_text, recipe = _recipe(path / "recipe.yaml")
    checkpoint = path / "checkpoint"
    return Folder(
        name=path.resolve().name.removesuffix(".partial"),
        path=path,
        heads=tuple(evidence.heads),
        arrays=evidence.arrays,
        facts=evidence.facts,
        environment=_file(path, "environment.json"),
        plan=plan,
        proof=_file(path, "proof.json"),
        compensation=_file(path, "compensation.json"),
        recovery=_file(path, "recovery.json"),
        accuracy=_file(path, "accuracy.json"),
        speed=_file(path, "speed.json"),
        stability=_file(path, "stability.json"),
        latency=_file(path, "latency.json"),
        drift=_file(path, "drift.json"),
        recipe=recipe,
        recipe_text=recipe_text,
        checkpoint=frozenset(f.name for f in checkpoint.iterdir()) if checkpoint.is_dir() else frozenset(),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or {} if there is no such file.

    Raises:
        BadInput: the file is not a JSON object.

    >>> read_json(Path("absent.json"))
    {}
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise BadInput(f"{path}: cannot be read as JSON ({problem}); restore the file or run again") from problem
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds a {type(found).__name__}, expected an object; restore the file or run again")
    return found


def _file(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the run in the form that pages read."""
    found = read_json(folder / name)
    if found:
        check_shape(folder / name, found, name)
    return found


def _evidence(folder: Path) -> Evidence:
    found = Evidence.load(folder)
    check_shape(folder / "evidence.json", found.facts, "evidence/evidence.json")
    check_arrays(folder, found.arrays, len(found.heads))
    return found


def _plan(path: Path) -> dict[str, Any]:
    return Plan.load(path).model_dump(mode="json", by_alias=True) if path.is_file() else {}


def _heads_of_plan(plan: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The head axis where no evidence was measured: the plan scores every head."""
    return [(site, head) for site, scores in plan.get("score", {}).items() for head in range(len(scores))]


def _recipe(path: Path) -> tuple[str, dict[str, Any]]:
    """The recipe as text and as data, read as carefully as any recipe."""
    if not path.is_file():
        return "", {}
    text = read_file(path)
    source = read(text, str(path))
    if source.mistakes:
        raise RecipeError(source.mistakes, str(path))
    return text, source.data
