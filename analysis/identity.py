"""Which model is it, and which analysis: what must be the same for two of them to be one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from headwise.analysis.annotations import Annotated
from headwise.analysis.capture.kernels import kernel_of
from headwise.analysis.capture.processes import world
from headwise.analysis.corpus.batching import Batches
from headwise.analysis.devices import brought_in, home

#: Packages whose release the numbers may depend on.
PACKAGES = ("headwise", "torch", "transformers", "numpy", "scipy")
# What a configuration says of where it lies and what wrote it.
_OF_THE_PLACE = ("_name_or_path", "_commit_hash", "transformers_version")


def marks_of(
    model: nn.Module, data: Batches, annotated: Sequence[Annotated], settings: Mapping[str, Any]
) -> dict[str, str]:
    """What tells one analysis from another, by name, each short enough to be shown.

    Args:
        model: weights, class, precision and kernel count, and how many processes run it.
        data: the texts and their tokens, in order.
        annotated: texts with links.
        settings: what else the sums depend on.
    """
    parameter = next(model.parameters())
    config = getattr(model, "config", None)
    gold = hashlib.sha256("".join(repr(text) for text in annotated).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    marks = {
        "model": f"{type(model).__name__} {weights_hash(model)}",
        "precision": f"{parameter.dtype} on {home(model).type}, kernel {kernel_of(config)}",
        "texts": data.mark,
        "batch size": str(data.batch_size),
        "annotations": gold if annotated else "none",
        "processes": str(world()[1]),
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }
    return marks | {name: json.dumps(value) for name, value in settings.items()}


def settings_hash(model: nn.Module, *beside: bytes) -> str:
    """Sixteen hex digits that name what a model's configuration says, and how it writes; "" for a model without one.

    Where the model lies and who saved it does not count.

    Args:
        model: with its configuration.
        beside: files that say more of how the model is used.

    >>> settings_hash(nn.Linear(2, 2))
    ''
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return ""
    parts = [config, getattr(model, "generation_config", None)]
    said = [json.loads(part.to_json_string(use_diff=False)) for part in parts if part is not None]
    told = [{name: value for name, value in one.items() if name not in _OF_THE_PLACE} for one in said]
    return hashlib.sha256(b"".join([json.dumps(told, sort_keys=True).encode(), *beside])).hexdigest()[:16]


def weights_hash(model: nn.Module) -> str:
    """Sixteen hex digits that name all weights of a model, bit for bit; also those that were put out to disk.

    >>> torch.manual_seed(0) and weights_hash(nn.Linear(2, 2)) == weights_hash(nn.Linear(2, 2))
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path) if tensor.is_meta else model
        with brought_in(module):
            flat = (getattr(module, own) if tensor.is_meta else tensor).detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()[:16]
