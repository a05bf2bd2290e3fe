"""Verifying: the plans and weights of a finished run or sweep, derived again from its recipe and compared."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.begun import begun_at, require_there
from headwise.prune.folder.stages import passing
from headwise.prune.pipeline import run
from headwise.prune.recipe import Recipe
from headwise.prune.recipe.parts import Speed
from headwise.prune.report.folder import read_json
from headwise.prune.report.shapes import check_shape
from headwise.prune.sweep import sweep

#: Files that tell times, or when and where; all others a repetition must give again, byte for byte.
_OF_THE_DAY = {"environment.json", "speed.json", "latency.json", "report.json", "sweep-report.json"}
#: Where a run's environment names what it was made of, by a hash.
_CONTENT = {
    "model": ("model", "hash"), "configuration": ("model", "config"),
    "calibration texts": ("texts", "calibration", "hash"), "evaluation texts": ("texts", "evaluation", "hash"),
}  # fmt: skip
#: Times are no part of what is repeated, so as few as possible are taken.
_QUICK = Speed(batches=(1,), lengths=(8,), rounds=3, seconds=1)


def verify(folder: str | Path, *, device: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """Whether the recipe of a run or a sweep, carried out again here and now, gives the same plans and weights.

    Args:
        folder: a finished run of `prune`, whose model a recipe can name, or a finished sweep.
        device: where to run; should be what the run had.
        trust_remote_code: run code that the checkpoint brings.

    Returns:
        Plain data: `same` (plans and weights), `files` (name to whether it came out the same),
        `weights` (hash of the run's and of the repetition's; of all budgets of a sweep that were cut, None if none
        was), `differs` (model, texts, versions and machine that are not what they were, the first thing to look at where
        something came out otherwise); of a sweep `budgets`, how many were `planned` and `cut`.

    Raises:
        BadInput: no finished run, or its model or texts cannot be had any more.

    >>> verify("/no-such-run")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: /no-such-run: no finished run of `prune`: recipe.yaml is missing
    """
    source = Path(folder)
    budgets = _budgets(source)
    _require_whole(source, swept=bool(budgets))
    recipe, made = _asked(source)
    cut = [share for share, part in budgets.items() if _shards(source / part)]
    how: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    with passing(), tempfile.TemporaryDirectory() as place:
        again = Path(place) / "again"
        if budgets:
            sweep(recipe, list(budgets), again, which=cut, **how)
        else:
            run(recipe, output_dir=again, **how)
        parts = [*budgets.values()] or [""]
        names = [f"{part}/{name}".lstrip("/") for part in parts for name in _repeated(source / part, again / part)]
        names += _repeated(source, again) if budgets else []
        files = {name: _digest(source / name) == _digest(again / name) for name in names}
        weights = {name: _weights([at / part for part in parts]) for name, at in (("run", source), ("again", again))}
        differs = _differences(made, read_json(again / "environment.json"))
    plans = all(same for name, same in files.items() if name.endswith("plan.json"))
    told = {"budgets": {"planned": len(budgets), "cut": len(cut)}} if budgets else {}
    return {
        "run": str(folder), "same": plans and weights["run"] == weights["again"], "files": files,
        "weights": weights, "differs": differs, **told,
    }  # fmt: skip


def _budgets(source: Path) -> dict[float, str]:
    """A sweep's shares, each with the name of its folder; {} where there is no sweep.

    Raises:
        BadInput: a sweep that is not finished, or whose record is damaged.
    """
    if not (source / "sweep.json").is_file():
        if any(source.glob("budget-*/plan.json")):
            raise BadInput(f"{source}: no finished sweep: sweep.json is missing")
        return {}
    points = read_json(source / "sweep.json").get("points")
    try:
        found = {float(point["fraction"]): str(point["folder"]) for point in points or ()}
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"{source / 'sweep.json'}: points: each needs fraction and folder") from error
    if not found or any(not (source / part / "plan.json").is_file() for part in found.values()):
        raise BadInput(f"{source}: no finished sweep: the plans that sweep.json tells of are missing")
    return found


def _require_whole(source: Path, *, swept: bool = False) -> None:
    """Return if a folder has what a repetition is held against.

    Raises:
        BadInput: with what is missing, and what could be verified instead.
    """
    needed = ("recipe.yaml", "environment.json", *(() if swept else ("plan.json", "checkpoint/model.safetensors")))
    for name in needed:
        if not (source / name).is_file() and not (name.endswith(".safetensors") and _shards(source)):
            above = source.resolve().parent
            judged = f"; it is a budget that was judged, not cut: verify its sweep, {above}"
            instead = judged if (above / "sweep.json").is_file() else ""
            raise BadInput(
                f"{source}: no finished {'sweep' if swept else 'run of `prune`'}: {name} is missing{instead}"
            )


def _asked(source: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, with a model and few timings, and the environment that it was carried out in."""
    recipe = Recipe.load(source / "recipe.yaml")
    made = read_json(source / "environment.json")
    check_shape(source / "environment.json", made, "environment.json")
    began = made.get("model") or {}
    if recipe.model.id is None and not began.get("id"):
        raise BadInput(f"{source}: neither recipe.yaml nor environment.json names the model that was pruned")
    change: dict[str, Any] = {"speed": _QUICK}
    if recipe.model.id in (None, began.get("id")):
        require_there(source, began)
        # A branch may have moved since.
        where = {"id": began["id"], "revision": begun_at(source, began["id"]) or recipe.model.revision}
        change["model"] = recipe.model.model_copy(update=where)
    return recipe.model_copy(update=change), made


def _repeated(*folders: Path) -> list[str]:
    """Names of the files that must agree: those that either folder has, the plan first."""
    found = {path.name for folder in folders for path in folder.glob("*.json")} - _OF_THE_DAY
    evidence = {f"evidence/{path.name}" for folder in folders for path in (folder / "evidence").glob("*")}
    return sorted(found | evidence, key=lambda name: (name != "plan.json", name))


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("model*.safetensors"))


def _weights(folders: Sequence[Path]) -> str | None:
    """Sixteen hex digits of the saved tensors: names, shapes and values, however they are spread over files."""
    import torch
    from safetensors import safe_open

    digest, any_weights = hashlib.sha256(), False
    for folder in folders:
        found: dict[str, Path] = {}
        for path in _shards(folder):
            with safe_open(path, framework="pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        for name in sorted(found):
            with safe_open(found[name], framework="pt") as file:
                tensor = file.get_tensor(name).contiguous()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        any_weights = any_weights or bool(found)
    return digest.hexdigest()[:16] if any_weights else None


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _at(told: Any, path: Sequence[str]) -> Any:
    for key in path:
        told = told.get(key) if isinstance(told, Mapping) else None
    return told


def _differences(made: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of model, texts, versions and machine is not as it was."""
    found: dict[str, Any] = {}
    for name, path in _CONTENT.items():
        then, new = (_at(told, path) for told in (made, now))
        if then not in (None, new):
            found[name] = {"run": then, "now": new}
    for part in ("versions", "machine"):
        for name, value in now[part].items():
            then = made.get(part, {}).get(name)
            if then != value:
                found[name] = {"run": then, "now": value}
    return found
