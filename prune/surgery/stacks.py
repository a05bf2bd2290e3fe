"""Stacks that share a bias table: one block computes the bias for all (T5), until a cut gives each a table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from headwise.analysis.sites import families
from headwise.prune.selection.blocks import Block


def stack_of(module: nn.Module, path: str) -> str:
    """Path of the stack in which a bias is handed on to the attention module at a path; `` if none is.

    >>> stack_of(nn.Linear(1, 1), "encoder.layer.0.attention")
    ''
    """
    if type(module).__name__ not in families.HANDED_TABLES:
        return ""
    parts = path.split(".")
    return ".".join(parts[: next((i for i, part in enumerate(parts) if part.isdigit()), 0)])


def in_block(path: str, stack: str) -> str:
    """A module's path behind the stack and the number of the block.

    >>> in_block("encoder.block.3.layer.0.SelfAttention", "encoder.block")
    'layer.0.SelfAttention'
    """
    return path.removeprefix(f"{stack}.").partition(".")[2]


def opened(module: nn.Module) -> bool:
    """Whether an earlier cut has given the module a table of its own.

    >>> opened(nn.Linear(1, 1))
    False
    """
    argument, _ = families.HANDED_TABLES.get(type(module).__name__, ("", ""))
    return any(getattr(hook, "argument", "") == argument != "" for hook in module._forward_pre_hooks.values())


def copied(model: nn.Module, blocks: Mapping[str, Block]) -> dict[tuple[str, ...], float]:
    """Parameters of the copies that the first cut in a stack makes of its table, by the names of its blocks.

    >>> copied(nn.Linear(1, 1), {})
    {}
    """
    stacks: dict[str, dict[str, Any]] = {}
    for name, block in blocks.items():
        path = block.sites[0].module
        module = model.get_submodule(path)
        stack = stack_of(module, path)
        if stack:
            table = getattr(module, families.HANDED_TABLES[type(module).__name__][1], None)
            stacks.setdefault(stack, {})[name] = (in_block(path, stack), table)
    found = {}
    for names in stacks.values():
        owner = next((name for name, (_, table) in names.items() if table is not None), None)
        if owner is not None:
            place, table = names[owner]
            others = sum(inner == place for inner, _ in names.values()) - 1
            found[tuple(names)] = float(others * len(table.weight) * blocks[owner].heads)
    return found
