"""Verifying: a finished run's plan and weights, derived again from its recipe and compared."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.environment import environment
from headwise.prune.pipeline import run
from headwise.prune.recipe import Recipe
from headwise.prune.recipe_parts import Speed
from headwise.prune.report.folder import read_json
from headwise.prune.report.shapes import check_shape

#: Files that tell times, or when and where; all others a repetition must give again, byte for byte.
_OF_THE_DAY = {"environment.json", "speed.json", "latency.json", "report.json"}
#: Times are no part of what is repeated, so as few as possible are taken.
_QUICK = Speed(batches=(1,), lengths=(8,), rounds=3, seconds=1)


def verify(folder: str | Path, *, device: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """Whether the run's recipe, carried out again here and now, gives the same plan and weights.

    Args:
        folder: a finished run of `prune`, whose model a recipe can name.
        device: where to run; should be what the run had.
        trust_remote_code: run code that the checkpoint brings.

    Returns:
        Plain data: `same` (plan and weights), `files` (name to whether it came out the same),
        `weights` (hash of the run's and of the repetition's), `differs` (versions and machine that are not
        what they were, the first thing to look at where something came out otherwise).

    Raises:
        BadInput: no finished run, or its model or texts cannot be had any more.

    >>> verify("/no-such-run")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: /no-such-run: no finished run of `prune`: recipe.yaml is missing
    """
    source = Path(folder)
    for needed in ("recipe.yaml", "environment.json", "plan.json", "checkpoint/model.safetensors"):
        if not (source / needed).is_file() and not (needed.endswith(".safetensors") and _shards(source)):
            raise BadInput(f"{folder}: no finished run of `prune`: {needed} is missing")
    recipe = Recipe.load(source / "recipe.yaml")
    made = read_json(source / "environment.json")
    check_shape(source / "environment.json", made, "environment.json")
    if recipe.model.id is None and not (made.get("model") or {}).get("id"):
        raise BadInput(f"{folder}: neither recipe.yaml nor environment.json names the model that was pruned")
    if recipe.model.id is None:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"id": made["model"]["id"]})})
    with tempfile.TemporaryDirectory() as place:
        again = run(
            recipe.model_copy(update={"speed": _QUICK}), output_dir=Path(place) / "again", device=device,
            trust_remote_code=trust_remote_code,
        ).folder  # fmt: skip
        files = {name: _digest(source / name) == _digest(again / name) for name in _repeated(source, again)}
        weights = {"run": _weights(source), "again": _weights(again)}
    return {
        "run": str(folder), "same": files["plan.json"] and weights["run"] == weights["again"], "files": files,
        "weights": weights, "differs": _differences(made),
    }  # fmt: skip


def _repeated(*folders: Path) -> list[str]:
    """Names of the files that must agree: those that either run has, the plan first."""
    found = {path.name for folder in folders for path in folder.glob("*.json")} - _OF_THE_DAY
    evidence = {f"evidence/{path.name}" for folder in folders for path in (folder / "evidence").glob("*")}
    return ["plan.json", *sorted((found | evidence) - {"plan.json"})]


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("model*.safetensors"))


def _weights(folder: Path) -> str:
    """Sixteen hex digits of the saved tensors: names, shapes and values, however they are spread over files."""
    import torch
    from safetensors import safe_open

    digest = hashlib.sha256()
    found: dict[str, Path] = {}
    for path in _shards(folder):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    for name in sorted(found):
        with safe_open(found[name], framework="pt") as file:
            tensor = file.get_tensor(name).contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _differences(made: Mapping[str, Any]) -> dict[str, Any]:
    """What of versions and machine is not as it was."""
    now = environment(seed=0, model={}, texts={})
    found: dict[str, Any] = {}
    for part in ("versions", "machine"):
        for name, value in now[part].items():
            then = made.get(part, {}).get(name)
            if then != value:
                found[name] = {"run": then, "now": value}
    return found
