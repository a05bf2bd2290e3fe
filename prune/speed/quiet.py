"""A model as it is used: evaluation and inference mode, nothing hooked in that would be timed too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput
from headwise.prune.tasks.outcome import judging
from headwise.prune.tasks.text_classification import pad_known

#: What `headwise` puts on modules of a cut model to keep heads of an argument or of an output.
_OWN_HOOKS = frozenset({"KeepArgument", "KeepOutput"})
#: Dormant hooks that transformers leaves behind once hidden states were asked for.
_DORMANT = "transformers.utils.output_capturing"


@contextlib.contextmanager
def ready(model: nn.Module) -> Iterator[None]:
    """The model as it is used: evaluation and inference mode, nothing else hooked in, padding id known.

    Raises:
        BadInput: a hook is on a module that would be timed with it.

    >>> with ready(nn.Dropout()) as nothing:
    ...     nothing is None
    True
    """
    refuse_hooks(model)
    dormant = _lift_dormant(model)
    try:
        with contextlib.ExitStack() as stack:
            if hasattr(model, "config"):
                stack.enter_context(pad_known(model, 0))
            stack.enter_context(judging(model))
            yield
    finally:
        for hooks, before in dormant:
            # In the order that they had: hooks run in the order of the dictionary.
            hooks.clear()
            hooks.update(before)


def refuse_hooks(model: nn.Module) -> None:
    """Return if nothing is hooked in that would be timed with the model.

    Raises:
        BadInput: a hook is, with where.
    """
    for name, module in model.named_modules():
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]:
            if type(hook).__name__ not in _OWN_HOOKS and getattr(hook, "__module__", "") != _DORMANT:
                raise BadInput(
                    f"cannot time {type(model).__name__}: a forward hook is on {name or 'the model'!r} "
                    f"({getattr(hook, '__qualname__', type(hook).__name__)}); leave gated(…) or capture(…) first, "
                    "or remove it"
                )


def _lift_dormant(model: nn.Module) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    lifted: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        hooks: dict[int, Any] = module._forward_hooks
        dormant = [key for key, hook in hooks.items() if getattr(hook, "__module__", "") == _DORMANT]
        if dormant:
            lifted.append((hooks, dict(hooks)))
            for key in dormant:
                del hooks[key]
    return lifted
