"""Rescue: a checkpoint that transformers 4 pruned, saved so that it opens today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import read_record
from headwise.prune.checkpoint import load, save


def rescue(
    checkpoint: str | Path, out: str | Path, *, revision: str | None = None, allow_pickle: bool = False,
    overwrite: bool = False,
) -> Any:  # fmt: skip
    """The model of a checkpoint with `pruned_heads`, or with nothing but a pickle, saved in the form that `load` opens.

    transformers 4 noted pruned heads in config.json and cut them again when it loaded; transformers 5 builds the
    dense model and stops at the first weight that does not fit.

    Args:
        checkpoint: a folder or hub id.
        out: where to write; an existing folder is refused unless `overwrite`.
        revision: of a hub checkpoint.
        allow_pickle: whether `pytorch_model.bin` may be read: a pickle can run code when it is opened. Then a
            checkpoint without pruned heads is saved anew, too, as safetensors, which no flag is needed for.
        overwrite: replace an existing folder.

    Raises:
        BadInput: if nothing was pruned there and no pickle allowed, or the weights do not fit what `pruned_heads` says.
    """
    options: dict[str, Any] = {"revision": revision} if revision else {}
    model = load(checkpoint, **options, **({"use_safetensors": None} if allow_pickle else {}))
    if read_record(model) is None and not allow_pickle:
        raise BadInput(
            f"{checkpoint}: its config.json names no pruned heads, so there is nothing to rescue; it opens as it is"
        )
    save(model, out, overwrite=overwrite)
    return model
