"""Which model is it, and which analysis: what must be the same for two of them to be one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from headwise.analysis.annotations import Annotated
from headwise.analysis.batching import Batches
from headwise.analysis.kernels import kernel_of
from headwise.analysis.processes import world

#: Packages whose release the numbers may depend on.
PACKAGES = ("headwise", "torch", "transformers", "numpy", "scipy")


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
        "precision": f"{parameter.dtype} on {parameter.device.type}, kernel {kernel_of(config)}",
        "texts": data.mark,
        "batch size": str(data.batch_size),
        "annotations": gold if annotated else "none",
        "processes": str(world()[1]),
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }
    return marks | {name: json.dumps(value) for name, value in settings.items()}


def weights_hash(model: nn.Module) -> str:
    """Sixteen hex digits that name all weights of a model, bit for bit; also those that were put out to disk.

    >>> torch.manual_seed(0) and weights_hash(nn.Linear(2, 2)) == weights_hash(nn.Linear(2, 2))
    False
    """
    digest = hashlib.sha256()
    put_out = dict(_put_out(model)) if any(tensor.is_meta for tensor in model.state_dict().values()) else {}
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.is_meta:
            store, key = put_out[name]
            tensor = store[key].to(tensor.dtype)
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()[:16]


def _put_out(model: nn.Module) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Weights that accelerate brings in only for a module's forward pass: where each is kept."""
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            store = getattr(part, "weights_map", None)
            if store is not None:
                deep = bool(getattr(part, "place_submodules", False))
                for name, _ in (*module.named_parameters(recurse=deep), *module.named_buffers(recurse=deep)):
                    yield f"{path}.{name}" if path else name, (store, name)
