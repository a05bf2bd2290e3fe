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
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)
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
    evidence = Evidence.load(path / "evidence") if measured else Evidence(_heads_of_plan(plan))
    recipe_text, recipe = _recipe(path / "recipe.yaml")
    checkpoint = path / "checkpoint"
    return Folder(
        name=path.resolve().name.removesuffix(".partial"),
        path=path,
        heads=tuple(evidence.heads),
        arrays=evidence.arrays,
        facts=evidence.facts,
        environment=read_json(path / "environment.json"),
        plan=plan,
        proof=read_json(path / "proof.json"),
        compensation=read_json(path / "compensation.json"),
        accuracy=read_json(path / "accuracy.json"),
        speed=read_json(path / "speed.json"),
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
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path}: cannot be read as JSON ({problem}); restore the file or run again") from problem
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds a {type(found).__name__}, expected an object; restore the file or run again")
    return found


def _plan(path: Path) -> dict[str, Any]:
    return Plan.load(path).model_dump(mode="json", by_alias=True) if path.is_file() else {}


def _heads_of_plan(plan: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The head axis where no evidence was measured: the plan scores every head."""
    return [(site, head) for site, scores in plan.get("score", {}).items() for head in range(len(scores))]


def _recipe(path: Path) -> tuple[str, dict[str, Any]]:
    """The recipe as text and as data."""
    if not path.is_file():
        return "", {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
        found = YAML(typ="safe", pure=True).load(text)
    except (OSError, ValueError, YAMLError) as problem:
        raise BadInput(f"{path}: cannot be read as YAML ({problem}); restore the file or run again") from problem
    return text, found if isinstance(found, dict) else {}
