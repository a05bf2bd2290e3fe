"""The check before the first edit: every edit is held against the shapes that it will meet."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.analysis.errors import BadInput
from headwise.analysis.sites.paths import root_path

# Kind of edit to the keys it must have, with their types.
_INT, _STR, _RUNS, _LIST = "a number", "a name", "a list of [start, stop]", "a list of numbers"
_KEYS: dict[str, dict[str, str]] = {
    "take": {"tensor": _STR, "axis": _INT, "of": _INT, "runs": _RUNS},
    "zero": {"tensor": _STR},
    "set": {"name": _STR},
    "copy": {"from": _STR, "name": _STR},
    "children": {"name": _STR, "keep": _LIST},
    "argument": {"argument": _STR},
    "output": {"runs": _RUNS},
    "config": {"values": "a mapping of names to numbers"},
    "replace": {},
    "distances": {},
}


def check_edits(model: nn.Module, edits: Sequence[Any]) -> None:
    """Nothing, if the edits can be applied to a model from first to last; the model is only read.

    Args:
        model: the model as it is before the first edit, on any device.
        edits: as `headwise.prune.surgery.edits` describes them, computed here or read from a file, which may hold anything.

    Raises:
        BadInput: for the first edit of an unknown kind, with keys or values of the wrong type, for a module or
            tensor that is not there, or for entries that do not exist.

    >>> check_edits(nn.Linear(4, 2), [])
    """
    shapes: dict[tuple[str, str], list[int]] = {}
    copied: set[str] = set()
    for number, edit in enumerate(edits):
        where = f"edit {number}"
        if not isinstance(edit, Mapping):
            raise BadInput(f"{where} of the record is no mapping: {edit!r:.80}")
        where += f" ({edit.get('edit')!r} at {edit.get('module')!r})"
        _typed(where, edit)
        if edit["module"] in copied:
            continue  # a submodule that an earlier edit puts there
        try:
            path = root_path(model, edit["module"])
        except ValueError as error:
            raise BadInput(f"{where}: {error}") from error
        if edit["edit"] == "copy":
            copied.add(f"{edit['module']}.{edit['name']}")
        if path is not None:
            _fits(where, model.get_submodule(path), path, edit, shapes)


def _typed(where: str, edit: Mapping[str, Any]) -> None:
    kind = edit.get("edit")
    if kind not in _KEYS or not (edit.get("module") == "" or _is(edit.get("module"), _STR)):
        raise BadInput(f"{where}: unknown kind of edit; expected one of {', '.join(_KEYS)} at a module's path")
    for key, expected in _KEYS[kind].items():
        if not _is(edit.get(key), expected):
            raise BadInput(f"{where}: {key} is {edit.get(key)!r:.60}, expected {expected}")
    if kind == "set":
        value = edit.get("value")
        if not (_int(value) or isinstance(value, bool) or _is(value, _LIST)):
            raise BadInput(f"{where}: value is {value!r:.60}, expected a number or a list of numbers")


def _int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is(value: Any, expected: str) -> bool:
    if expected == _INT:
        return _int(value) and value >= 0
    if expected == _STR:
        parts = value.removeprefix("/").split(".") if isinstance(value, str) else [""]
        return all((part.isidentifier() and not part.startswith("_")) or part.isdigit() for part in parts)
    if expected == _LIST:
        return isinstance(value, list) and bool(value) and all(_int(v) and v >= 0 for v in value)
    if expected == _RUNS:
        return isinstance(value, list) and bool(value) and all(
            isinstance(run, list) and len(run) == 2 and all(map(_int, run)) and 0 <= run[0] < run[1] for run in value
        )  # fmt: skip
    return isinstance(value, Mapping) and all(isinstance(k, str) and _int(v) for k, v in value.items())


Shapes = dict[tuple[str, str], list[int]]


def _fits(where: str, module: Any, path: str, edit: Mapping[str, Any], shapes: Shapes) -> None:
    match edit["edit"]:
        case "take":
            _takes(where, module, path, edit, shapes)
        case "set" if not _same_kind(module.__dict__.get(edit["name"]), edit["value"]):
            raise BadInput(f"{where}: {type(module).__name__} keeps no such number under {edit['name']!r}")
        case "zero" if not isinstance(getattr(module, edit["tensor"], None), Tensor):
            raise BadInput(f"{where}: there is no tensor {edit['tensor']!r}")
        case "children":
            parts = getattr(module, edit["name"], None)
            held = shapes.setdefault((path, edit["name"]), [len(parts) if isinstance(parts, nn.ModuleList) else 0])
            if max(edit["keep"]) >= held[0]:
                raise BadInput(f"{where}: the list {edit['name']!r} does not hold the modules {edit['keep']}")
            held[0] = len(edit["keep"])
        case "argument" if edit["argument"] not in inspect.signature(module.forward).parameters:
            raise BadInput(f"{where}: {type(module).__name__}.forward takes no argument {edit['argument']!r}")
        case "replace" if not isinstance(module, nn.MultiheadAttention):
            raise BadInput(f"{where}: {type(module).__name__} is no nn.MultiheadAttention")
        case "distances" if not callable(getattr(module, "_relative_position_bucket", None)):
            raise BadInput(f"{where}: {type(module).__name__} sorts no distances into buckets")
        case "config" if not hasattr(module, "config"):
            raise BadInput(f"{where}: the module has no configuration")


def _same_kind(held: Any, value: Any) -> bool:
    """Whether an attribute holds a number, a flag or a shape, and the new value is another of these."""
    if isinstance(held, (tuple, list)):
        return isinstance(value, list) and len(value) == len(held)
    return isinstance(held, bool) is isinstance(value, bool) and isinstance(held, int) and isinstance(value, int)


def _takes(where: str, module: Any, path: str, edit: Mapping[str, Any], shapes: Shapes) -> None:
    name, axis = edit["tensor"], edit["axis"]
    tensor = getattr(module, name, "")
    if tensor is None:
        return
    if not isinstance(tensor, Tensor):
        raise BadInput(f"{where}: there is no tensor {name!r}")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise BadInput(
            f"{path}.{name} is kept as {type(tensor).__name__}, of which no rows can be cut: cut first, then quantise or spread "
            "what is left (a checkpoint: headwise.prune.load(folder, quantization_config=…))"
        )
    shape = shapes.setdefault((path, name), list(tensor.shape))
    if axis >= len(shape) or shape[axis] != edit["of"] or max(stop for _, stop in edit["runs"]) > shape[axis]:
        raise BadInput(
            f"{where}: {name} has the shape {shape}, the edit takes {edit['runs'][-1]} of {edit['of']} along axis {axis}"
        )
    shape[axis] = sum(stop - start for start, stop in edit["runs"])
