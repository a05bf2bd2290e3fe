"""Incision: the edits that take one attention module from one decision to the next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from headwise.analysis.errors import CannotCut
from headwise.analysis.sites import Site, families
from headwise.analysis.sites.anatomy import Anatomy, is_linear
from headwise.prune.surgery.decision import Decision
from headwise.prune.surgery.edits import Edit, assign, runs, shifted, take
from headwise.prune.surgery.move import Move, features, linear
from headwise.prune.surgery.per_head import extras, norms, sees_all_heads, shares_bias, tables
from headwise.prune.surgery.stacks import in_block, opened, stack_of


def incise(
    model: nn.Module, anatomy: Anatomy, site: Site, now: Decision, then: Decision, handed: set[str]
) -> tuple[list[Edit], Decision]:
    """The edits that cut one module, with paths from the model's root.

    Args:
        model: the model; only read.
        anatomy: where the module keeps its projections.
        site: the site (any of its calls).
        now: what the module has.
        then: what it shall have.
        handed: stacks whose handed-on bias table has been copied already; grows.

    Returns:
        The edits and the decision, which learns here whether query and key rows must stay whole.

    Raises:
        CannotCut: if something per head stands in the module that no rule knows how to slice.
    """
    module = model.get_submodule(anatomy.module)
    move = Move(
        model,
        module,
        anatomy.module,
        anatomy,
        site.head_dim,
        now,
        replace(then, whole=now.whole or sees_all_heads(module, now)),
    )
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(move), move.then
    edits = [*_handed_table(move, handed), *_projections(move), *norms(move), *extras(move)]
    edits += [*tables(move), *_copied_table(move, site), *_arguments(move), *_numbers(move), *_config(move)]
    edits += _successor(move)
    return edits, move.then


# ---------------------------------------------------------------------------------------------- projections
def _projections(move: Move) -> Iterator[Edit]:
    anatomy, path = move.anatomy, move.path
    if anatomy.bare:
        for name in "qkvor":
            yield take(path, name, 1, len(move.now.present), runs(move.query))
        yield from _ghost(move, path, anatomy.output.partition(":")[2])
        return
    if anatomy.query and not move.then.whole:
        yield from _rows(move, anatomy.query, keys=False)
    if anatomy.key and not move.then.whole:
        yield from _rows(move, anatomy.key, keys=True)
    if anatomy.value:
        yield from _rows(move, anatomy.value, keys=True)
    if anatomy.fused_kv:
        yield from _fused_kv(move)
    if anatomy.fused:
        yield from _fused(move)
    yield from linear(move.model, anatomy.output, runs(move.query, move.head_dim), axis=1)
    yield from _ghost(move, anatomy.output, "weight")


def _ghost(move: Move, path: str, name: str) -> Iterator[Edit]:
    if move.then.ghost is not None:
        yield {"edit": "zero", "module": path, "tensor": name}


def _rows(move: Move, name: str, keys: bool) -> Iterator[Edit]:
    positions, count = move.positions(keys)
    out = features(move.module.get_submodule(name), 0)
    yield from linear(move.model, f"{move.path}.{name}", runs(positions, out // count), axis=0)


def _fused(move: Move) -> Iterator[Edit]:
    """Rows of a projection that holds queries, keys and values: by sections, or by key/value group."""
    name, d = move.anatomy.fused, move.head_dim
    if type(move.module).__name__ in families.GROUPED_ROWS:
        old, new, blocks = move.now.group_size, move.then.group_size, []
        for slot, source in enumerate(move.kv):
            mine = move.query[slot * new : (slot + 1) * new]
            blocks += [p // old * (old + 2) + p % old for p in mine]
            blocks += [source * (old + 2) + old, source * (old + 2) + old + 1]
        kept = runs(blocks, d)
    else:
        heads, kv = len(move.now.present), len(move.now.kv)
        kept = [
            *runs(move.query, d),
            *shifted(runs(move.kv, d), heads * d),
            *shifted(runs(move.kv, d), (heads + kv) * d),
        ]
    yield from linear(move.model, f"{move.path}.{name}", kept, axis=0)


def _fused_kv(move: Move) -> Iterator[Edit]:
    """Rows of a projection that holds keys and values: a block per head (latent attention) or two sections."""
    name = move.anatomy.fused_kv
    out, count = features(move.module.get_submodule(name), 0), len(move.now.kv)
    if name == "kv_b_proj":
        kept = runs(move.kv, out // count)
    else:
        half = runs(move.kv, out // 2 // count)
        kept = [*half, *shifted(half, out // 2)]
    yield from linear(move.model, f"{move.path}.{name}", kept, axis=0)


def _multihead(move: Move) -> list[Edit]:
    """`nn.MultiheadAttention`: three sections in one parameter, and a class that runs with fewer heads."""
    module: Any = move.module
    width = len(move.now.present) * move.head_dim
    third = runs(move.query, move.head_dim)
    sections = [*third, *shifted(third, width), *shifted(third, 2 * width)]
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise CannotCut(
            f"{move.path}: nn.MultiheadAttention with other key widths, key biases or a zero key cannot be cut"
        )
    edits = [take(move.path, "in_proj_weight", 0, 3 * width, sections)]
    if module.in_proj_bias is not None:
        edits.append(take(move.path, "in_proj_bias", 0, 3 * width, sections))
    edits += linear(move.model, move.anatomy.output, third, axis=1)
    edits += _ghost(move, move.anatomy.output, "weight")
    return [
        *edits,
        assign(move.path, "num_heads", len(move.then.present)),
        {"edit": "replace", "module": move.path},
    ]


# ---------------------------------------------------------------------------------------------- tables handed on
def _copied_table(move: Move, site: Site) -> Iterator[Edit]:
    """The columns of a table that this cut has just given to a block: the model does not show it yet."""
    fact = families.HANDED_TABLES.get(type(move.module).__name__)
    if fact is not None and site.kind == "self" and getattr(move.module, fact[1], None) is None:
        yield take(f"{move.path}.{fact[1]}", "weight", 1, move.now.heads, runs(move.query))


def _arguments(move: Move) -> Iterator[Edit]:
    arguments = families.HEAD_ARGUMENTS.get(type(move.module).__name__, ())
    if shares_bias(move):
        names = inspect.signature(type(move.module).forward).parameters
        shared = next(name for name in families.SHARED_BIAS if name in names)
        arguments = (*arguments, (shared, 1))
    for argument, axis in arguments:
        yield {"edit": "argument", "module": move.path, "argument": argument, "axis": axis,
               "heads": move.then.heads, "keep": list(move.then.present)}  # fmt: skip


def _handed_table(move: Move, handed: set[str]) -> Iterator[Edit]:
    """T5's first block computes the bias and hands it on: give every block of the stack its own dense table.

    Done once, before any slicing, for all blocks of the stack, since a block that lost nothing must not get
    the sliced bias of one that did. Cross-attention hands on a bias of zeros: dropping it is enough.
    """
    fact = families.HANDED_TABLES.get(type(move.module).__name__)
    if fact is None:
        return
    argument, table = fact
    stack = stack_of(move.module, move.path)
    if stack in handed or opened(move.module):
        return
    handed.add(stack)
    blocks = [(path, module) for path, module in move.model.named_modules()
              if path.startswith(stack + ".") and type(module) is type(move.module)]  # fmt: skip
    owner = next((path for path, module in blocks if getattr(module, table, None) is not None), "")
    for path, module in blocks:
        # Cross-attention has the same class but never a table: it is told apart by its place in the block.
        if in_block(path, stack) == in_block(owner, stack) and path != owner:
            yield {"edit": "copy", "module": path, "name": table, "from": f"{owner}.{table}"}
            yield assign(path, "has_relative_attention_bias", True)
        if in_block(path, stack) == in_block(owner, stack) and hasattr(module, "_relative_position_bucket"):
            # What one block did for all is now done in each.
            yield {"edit": "distances", "module": path}
        yield {"edit": "argument", "module": path, "argument": argument}


def _numbers(move: Move) -> Iterator[Edit]:
    """Attributes that hold a head count or a width, wherever they equal the old one."""
    now, then, d = move.now, move.then, move.head_dim
    renamed: list[tuple[tuple[str, ...], int, int]] = [
        (families.HEAD_COUNTS, len(now.present), len(then.present)),
        (families.KV_COUNTS, len(now.kv), len(then.kv)),
        (families.GROUP_SIZES, now.group_size, then.group_size),
        (families.QUERY_WIDTHS, len(now.present) * d, len(then.present) * d),
        (families.KV_WIDTHS, len(now.kv) * d, len(then.kv) * d),
    ]
    for name, child in move.module.named_modules():
        path = f"{move.path}.{name}" if name else move.path
        if path == move.anatomy.output or is_linear(child) or name.split(".")[0] in families.NOT_PER_HEAD:
            continue
        for names, old, new in renamed:
            for attribute in names:
                value = child.__dict__.get(attribute)
                if isinstance(value, int) and not isinstance(value, bool) and value == old and old != new:
                    yield assign(path, attribute, new)


def _config(move: Move) -> Iterator[Edit]:
    """A module that reads head counts from its configuration in forward gets a view with the new ones."""
    if not hasattr(move.module, "config"):
        return
    code = inspect.unwrap(type(move.module).forward).__code__
    read: Callable[[str], bool] = lambda name: name in code.co_names and name not in move.module.__dict__  # noqa: E731
    values = {name: len(move.then.present) for name in families.CONFIG_HEAD_COUNTS if read(name)}
    values |= {name: len(move.then.kv) for name in families.CONFIG_KV_COUNTS if read(name)}
    if values and "config" in code.co_names:
        yield {"edit": "config", "module": move.path, "values": values}


def _successor(move: Move) -> Iterator[Edit]:
    """What BigBird builds in the module's place, when inputs become short, has the same heads as the module."""
    parent = move.path.rpartition(".")[0]
    if hasattr(move.model.get_submodule(parent), "set_attention_type"):
        heads = len(move.then.present)
        yield {"edit": "config", "module": parent,
               "values": {"num_attention_heads": heads, "hidden_size": heads * move.head_dim}}  # fmt: skip
