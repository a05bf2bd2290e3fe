"""Adapters: train low-rank updates instead of all weights, and merge them, so that the checkpoint stays whole."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.sites.anatomy import is_linear


def require_peft() -> Any:
    """The library of adapters.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise BadInput(
            "recover.lora needs the library peft: pip install 'headwise[lora]'; or leave lora out"
        ) from error
    return peft


@contextlib.contextmanager
def low_rank(model: nn.Module, rank: int, still: Collection[str] = ()) -> Iterator[None]:
    """Let a model's linear layers learn by updates of low rank while the block lasts; merge them when it ends.

    W + 2 B A with B = 0 at the start (Hu et al., 2021, "LoRA"); all else is frozen. Output embeddings are left as they
    are: they are often the input embeddings, too.

    Args:
        model: changed in place; afterwards its modules, types and flags are what they were.
        rank: of the updates.
        still: paths of modules that must not change.

    Raises:
        BadInput: peft is missing, or no layer can be adapted.
    """
    peft = require_peft()
    learning = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    last = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    targets = [
        name
        for name, module in model.named_modules()
        if is_linear(module) and module is not last and name not in still and _adaptable(module)
    ]
    if not targets:
        raise BadInput("recover.lora: no linear layer can be adapted; leave lora out")
    columns_first = any(type(model.get_submodule(name)).__name__ == "Conv1D" for name in targets)
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets, exclude_modules=list(still) or None,
        fan_in_fan_out=columns_first,
    )  # fmt: skip
    with warnings.catch_warnings():
        # It still asks by a name that the library of models will drop.
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.get_peft_model(model, config)
    try:
        yield
    finally:
        adapted.merge_and_unload()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(learning[name])


def _adaptable(module: nn.Module) -> bool:
    """Whether the class is one that the library's layers stand in for exactly; a subclass may do more."""
    return type(module).__name__ in ("Linear", "Conv1D")
