"""Which attention kernel a model runs on: switching to the one that returns maps, and back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput, HeadwiseError


def eager_kernel(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Run the block on the eager kernel, the one that hands out its maps; see `on_kernel`.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, vocab_size=9))
    >>> with eager_kernel(model):
    ...     print(model.config._attn_implementation)
    eager
    """
    return on_kernel(model, "eager")


@contextlib.contextmanager
def on_kernel(model: nn.Module, name: str) -> Iterator[None]:
    """Run the block on a kernel; restore whatever was set before.

    Every config in the model is switched, read back, and restored: the root's, its sub-configs, and the
    copies that some modules hold. Switching silently does nothing for some families, hence the reading back.

    Args:
        model: the model.
        name: of the kernel, as transformers knows it.

    Raises:
        BadInput: a module stays on another kernel; the message says how to load the model instead.
        HeadwiseError: a kernel could not be restored.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, vocab_size=9))
    >>> with on_kernel(model, "eager"):
    ...     print(model.config._attn_implementation)
    eager
    >>> model.config._attn_implementation
    'sdpa'
    """
    before = [(where, config, kernel_of(config)) for where, config in _configs(model)]
    try:
        if any(kernel not in (None, name) for _, _, kernel in before):
            _switch(model, name)
        yield
    finally:
        for _, config, kernel in before:
            # A config that only reads through to another one follows by itself, and must not get a value.
            if kernel_of(config) != kernel:
                config._attn_implementation_internal = kernel
        lost = [where for where, config, kernel in before if kernel_of(config) != kernel]
        if lost:
            raise HeadwiseError(f"{', '.join(lost)}: the attention kernel could not be restored; reload the model")


def kernel_of(config: Any) -> str | None:
    """The name of the attention kernel that a config asks for, None if it leaves it open.

    >>> from transformers import BertConfig
    >>> kernel_of(BertConfig(attn_implementation="eager"))
    'eager'
    """
    return getattr(config, "_attn_implementation", None)


def kernels(model: nn.Module) -> dict[str, str | None]:
    """The kernel of every distinct config in the model, by the place that holds it ('' is the root).

    >>> kernels(nn.Linear(2, 2))
    {}
    """
    return {where: kernel_of(config) for where, config in _configs(model)}


def _configs(model: nn.Module) -> list[tuple[str, Any]]:
    """Each distinct config object, with the place where it was found first."""
    found: dict[int, tuple[str, Any]] = {}

    def add(where: str, config: Any) -> None:
        if config is None or id(config) in found or not hasattr(config, "_attn_implementation"):
            return
        found[id(config)] = (where, config)
        for name in getattr(config, "sub_configs", ()) or ():
            add(f"{where}.config.{name}".lstrip("."), getattr(config, name, None))

    for where, module in model.named_modules():
        add(where, getattr(module, "config", None))
    return list(found.values())


def _switch(model: nn.Module, name: str) -> None:
    setter = getattr(model, "set_attn_implementation", None)
    if setter is not None:
        # Its warning is repeated below as an error that says what to do.
        logger = logging.getLogger("transformers.modeling_utils")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            setter(name)
        except (ValueError, ImportError) as error:
            raise _cannot(model, name, str(error)) from error
        finally:
            logger.setLevel(level)
    stuck = [
        f"{where or 'the model'} ({kernel})" for where, kernel in kernels(model).items() if kernel not in (None, name)
    ]
    if stuck:
        raise _cannot(model, name, "still on another kernel: " + ", ".join(stuck[:4]))


def _cannot(model: nn.Module, name: str, reason: str) -> BadInput:
    if name != "eager":
        return BadInput(f"{type(model).__name__} does not switch to the kernel {name} ({reason}).")
    return BadInput(
        f"{type(model).__name__} does not switch to the eager kernel, which attention maps need ({reason}). "
        "Load it with attn_implementation='eager', or ask only for measures that need no maps."
    )
