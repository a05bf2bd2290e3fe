"""What a training has learnt, kept until the checkpoint holds it: an interrupted run does not learn it again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.identity import weights_hash

log = logging.getLogger("headwise")

#: Where trained weights wait in a run's folder, or a budget's.
FILE = "trained.safetensors"


def trained(model: nn.Module, file: Path, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Train a model in place unless that is done already; then take the weights that were kept.

    Weights are taken for a model only that is, bit for bit, the one that was trained; another one is trained anew.

    Args:
        model: as it is before the training.
        file: where the trained weights are kept, with what the training told; it appears whole or not at all.
        train: trains the model and tells about it, as plain data.

    Raises:
        BadInput: the file is damaged.
    """
    begun = weights_hash(model)
    if file.exists():
        told = _taken(model, file, begun)
        if told is not None:
            return told
        log.warning("recover: %s was trained from another model than this one, so it is trained anew", file)
    try:
        told = train()
    except KeyboardInterrupt:
        log.warning(
            "recover: of a training only its end is kept, so this one begins at its first epoch if it is resumed"
        )
        raise
    fresh = file.with_name(f"{file.name}.new")
    save_model(model, str(fresh), metadata={"from": begun, "told": json.dumps(told)})
    fresh.replace(file)
    return told


def _taken(model: nn.Module, file: Path, begun: str) -> dict[str, Any] | None:
    """What the training told, and its weights in the model; None if it began from other weights than `begun`."""
    try:
        with safe_open(file, framework="pt") as opened:
            known = opened.metadata() or {}
        if known.get("from") != begun:
            return None
        load_model(model, file)
        told: dict[str, Any] = json.loads(known["told"])
    except (SafetensorError, RuntimeError, KeyError, ValueError) as error:
        raise BadInput(f"{file} is damaged ({first_line(error)}); delete it to have the model trained again") from error
    return told
