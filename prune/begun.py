"""Begun: the model that a run began with, found again when somebody goes on with the run, repeats or judges it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.checkpoint.configuration import EMBEDDED


def began_with(folder: Path) -> dict[str, Any]:
    """Facts of the model that a run, an analysis or a sweep began with; {} if it tells none.

    >>> began_with(Path("/no-such-run"))
    {}
    """
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def begun_at(folder: Path, name: str | None) -> str | None:
    """The commit of the hub that a run began with, if it is one of the model that is asked for now.

    A branch may have moved since; what was measured belongs to where it was.
    """
    began = began_with(folder)
    there = began.get("id") == name and not Path(str(name)).exists()
    return str(began["revision"]) if there and began.get("revision") else None


def require_there(folder: Path, began: Mapping[str, Any], how: str = "") -> None:
    """Return unless the model was in a folder that is not here; on the hub another model might have its name.

    Args:
        folder: of the run.
        began: facts of its model.
        how: in words, how else to say where the model lies now.

    Raises:
        BadInput: with what to do.
    """
    name = str(began.get("id") or "")
    if (
        not name
        or name == EMBEDDED
        or began.get("revision")
        or not began.get("hash")
        or Path(name).expanduser().exists()
    ):
        return
    if name == began.get("class"):  # so a run calls a model that has no other name
        raise BadInput(f"{folder}: its model, a {name}, was lent from memory and lies nowhere that is known{how}")
    start = "" if Path(name).is_absolute() else "go to where the run was started, or "
    raise BadInput(
        f"{folder}: its model was the folder {name}, which is not here; {start}put it, or a link to it, there again{how}"
    )


def other_weights(began: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a model is another one than a run began with; of one in another precision nobody can tell.

    >>> other_weights({"dtype": "float32", "hash": "0123"}, {"dtype": "float32", "hash": "4567"})
    True
    """
    return began.get("dtype") == facts["dtype"] and began.get("hash") not in (None, facts["hash"])


def require_same(began: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Return unless a model is another one than a run began with, in the same precision.

    Raises:
        BadInput: with what to do.
    """
    if other_weights(began, facts):
        raise BadInput(
            f"{facts['id']} is not the model that the run began with any more (its weights are {facts['hash']}, they were "
            f"{began['hash']}); put it back, or say what to compare with: --against MODEL (against=)"
        )
