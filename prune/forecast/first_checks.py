"""First checks: what a run would refuse before it has measured anything, found without weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from headwise.analysis.corpus.tables import FORMATS
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.hooked import hooked
from headwise.prune.checkpoint.configuration import where_is
from headwise.prune.forecast.needs import Texts
from headwise.prune.material import Material, gather
from headwise.prune.opening import reader_of
from headwise.prune.recipe import Recipe
from headwise.prune.tasks import choose_task
from headwise.prune.tasks.overlong import overlong

#: Texts that a task is tried on: its labels and columns are looked at, nothing is computed.
_TEXTS = 256


class _Ran(Exception):
    """The task has made its checks and begins to run the model."""


def first_checks(recipe: Recipe, model: Any, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Texts and task of a run, once its checkpoint's reader, its texts and its task are found to fit one another.

    Texts of the hub are not fetched for this; then only the task is held against the model's class.

    Args:
        recipe: names checkpoint, texts and task.
        model: without weights.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        BadInput: what the run itself would refuse at its beginning.
    """
    revision = {"revision": recipe.model.revision} if recipe.model.revision else {}
    reader = reader_of(model, where_is(str(recipe.model.id)), trust_remote_code, revision)
    material = gather(recipe.data, recipe.seed) if _here(recipe) else None
    if material is None and recipe.task is None:
        return {"texts": "of the hub, not read"}
    calibration = material.calibration.sample(_TEXTS, recipe.seed) if material else Corpus([], "texts of the hub")
    task = recipe.task or choose_task(model, reader, calibration)
    with _unrun(model), _looked():
        task.fit(model, reader, calibration, seed=recipe.seed)
    return {
        "task": task.kind,
        "texts": _told(recipe, model, reader, material),
        **_long(recipe, model, reader, material),
    }


def _here(recipe: Recipe) -> bool:
    """Whether all texts are on this machine."""
    parts = [recipe.data.calibration, *([recipe.data.evaluation] if recipe.data.evaluation else [])]
    return all(part.source == "embedded" or _local(part.source) for part in parts)


def _local(source: str) -> bool:
    # A file that is missing is missed here, too: only what can be the name of a data set is left for the run.
    path = Path(source).expanduser()
    return (
        path.exists() or path.suffix.lower() in FORMATS or source.count("/") > 1 or source.startswith((".", "/", "~"))
    )


def _unrun(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Inside the block a pass through the model, or any part of it, raises `_Ran`."""

    def stop(*_: Any) -> None:
        raise _Ran

    return hooked(module.register_forward_pre_hook(stop) for module in model.modules())


@contextlib.contextmanager
def _looked() -> Iterator[None]:
    """The block may end where it begins to run the model, or to read values, which a model without weights has not."""
    try:
        yield
    except (_Ran, NotImplementedError, RuntimeError) as reason:
        if isinstance(reason, BadInput):
            raise


def _long(recipe: Recipe, model: Any, reader: Any, material: Material | None) -> dict[str, Any]:
    """Tokens a text, on average and at most; {} if nobody can tell."""
    found = None if material is None else Texts.of(material, recipe, model, reader)
    return {} if found is None else {"tokens_a_text": {"mean": round(found.mean, 1), "most": found.longest}}


def _told(recipe: Recipe, model: Any, reader: Any, material: Material | None) -> dict[str, Any] | str:
    if material is None:
        return "of the hub, not read"
    parts = {"calibration": material.calibration, "evaluation": material.evaluation}
    cut = overlong(model, reader, parts, max_length=recipe.data.max_length, task=recipe.task)
    counts: dict[str, Any] = {name: len(corpus) for name, corpus in parts.items()}
    return counts | {f"cut_off_in_{name}": count for name, count in cut.items() if count}
