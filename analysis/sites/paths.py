"""Paths of modules as a record keeps them: counted from the base model, so that any head class can read them.

This file stands alone (torch only): a saved checkpoint carries its text.
"""

from __future__ import annotations

from torch import nn


def base_prefix(model: nn.Module) -> str:
    """Where the base model sits inside this one, as a path prefix: `bert.`, `model.`, or ``.

    >>> base_prefix(nn.Linear(1, 1))
    ''
    """
    prefix = getattr(model, "base_model_prefix", "")
    return f"{prefix}." if prefix and prefix in dict(model.named_children()) else ""


def record_path(model: nn.Module, path: str) -> str:
    """A path from the model's root as the record keeps it: relative to the base model, or `/…` outside it."""
    base = base_prefix(model)
    return path.removeprefix(base) if path.startswith(base) else "/" + path


def root_path(model: nn.Module, path: str) -> str | None:
    """A record's path as a path from this model's root, or None where this class lacks the whole stack.

    Raises:
        ValueError: if the stack is there but the module is not: the record belongs to another class.
    """
    base = base_prefix(model)
    rooted = path.removeprefix("/") if path.startswith("/") else base + path
    bare = rooted.partition(":")[0]
    prefix = "" if path.startswith("/") else base
    stack = prefix + bare.removeprefix(prefix).split(".")[0]
    try:
        model.get_submodule(stack)
    except AttributeError:
        return None
    try:
        model.get_submodule(bare)
    except AttributeError:
        raise ValueError(
            f"{type(model).__name__} has no module {bare!r}, which this checkpoint's record of cut heads names: the class "
            "or its release differs too much from the one that was cut"
        ) from None
    return rooted
