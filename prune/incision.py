"""Incision: the edits that take one attention module from one decision to the next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from headwise.analysis import families
from headwise.analysis.anatomy import Anatomy, is_linear
from headwise.analysis.errors import CannotCut
from headwise.analysis.sites import Site
from headwise.prune.decision import Decision
from headwise.prune.edits import Edit, Runs, assign, length, runs, shifted, take


@dataclass(frozen=True)
class Move:
    """From one decision to the next, in the terms that slicing needs."""

    model: nn.Module
    module: nn.Module
    path: str
    anatomy: Anatomy
    head_dim: int
    now: Decision
    then: Decision

    @property
    def query(self) -> list[int]:
        """Positions of the kept query heads among the present ones."""
        return [self.now.present.index(head) for head in self.then.present]

    @property
    def kv(self) -> list[int]:
        """Positions of the kept key/value heads among the present ones; may repeat."""
        return [self.now.kv.index(head) for head in self.then.kv]

    def positions(self, keys: bool) -> tuple[list[int], int]:
        """Kept positions and how many there are now, of query or key/value heads."""
        return (self.kv, len(self.now.kv)) if keys else (self.query, len(self.now.present))


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
        replace(then, whole=now.whole or _whole(module, now)),
    )
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(move), move.then
    edits = [*_handed_table(move, handed), *_projections(move), *_norms(move), *_extras(move)]
    edits += [*_tables(move), *_copied_table(move, site), *_arguments(move), *_numbers(move), *_config(move)]
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
    out = _features(move.module.get_submodule(name), 0)
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
    out, count = _features(move.module.get_submodule(name), 0), len(move.now.kv)
    if name == "kv_b_proj":
        kept = runs(move.kv, out // count)
    else:
        half = runs(move.kv, out // 2 // count)
        kept = [*half, *shifted(half, out // 2)]
    yield from linear(move.model, f"{move.path}.{name}", kept, axis=0)


def linear(model: nn.Module, path: str, kept: Runs, axis: int) -> Iterator[Edit]:
    """The edits that keep runs of a linear map's outputs (axis 0) or inputs (axis 1), sizes included.

    Conv1D stores its weight the other way round and calls its sizes `nf` and `nx`.
    """
    module = model.get_submodule(path)
    turned = type(module).__name__ == "Conv1D"
    of = _features(module, axis)
    yield take(path, "weight", 1 - axis if turned else axis, of, kept)
    if axis == 0 and getattr(module, "bias", None) is not None:
        yield take(path, "bias", 0, of, kept)
    for name in ("nf", "out_features") if axis == 0 else ("nx", "in_features"):
        if hasattr(module, name):
            yield assign(path, name, length(kept))


def _features(module: Any, axis: int) -> int:
    return module.weight.shape[1 - axis if type(module).__name__ == "Conv1D" else axis]


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


# ---------------------------------------------------------------------------------------------- norms
def _norm_names(module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    for name, child in module.named_children():
        if name in families.QUERY_NORMS or name in families.KEY_NORMS:
            yield name, child, name in families.KEY_NORMS


def _whole(module: nn.Module, now: Decision) -> bool:
    """Whether a norm looks across all query heads at once: then their rows must all be there."""
    for _, child, keys in _norm_names(module):
        weight, count = getattr(child, "weight", None), len(now.kv if keys else now.present)
        if weight is not None and weight.ndim == 1 and count > 1 and weight.shape[0] == _norm_width(module, keys):
            return True
    return False


def _norm_width(module: nn.Module, keys: bool) -> int:
    names = families.KEY if keys else families.QUERY
    child = next((getattr(module, name) for name in names if is_linear(getattr(module, name, None))), None)
    return _features(child, 0) if child is not None else -1


def _norms(move: Move) -> Iterator[Edit]:
    for name, child, keys in _norm_names(move.module):
        path, (positions, count) = f"{move.path}.{name}", move.positions(keys)
        if move.then.whole and getattr(child, "weight", None) is not None and child.weight.ndim == 1:
            if child.weight.shape[0] == _norm_width(move.module, keys):
                # The norm sees every head; what leaves it is picked, by place in the dense model.
                kept = move.then.kv if keys else move.then.present
                dense = move.then.kv_heads if keys else move.then.heads
                yield {"edit": "output", "module": path, "runs": runs(kept, child.weight.shape[0] // dense)}
            continue
        lists = [(n, c) for n, c in child.named_children() if isinstance(c, nn.ModuleList) and len(c) == count]
        for list_name, _ in lists:
            yield {"edit": "children", "module": path, "name": list_name, "keep": positions}
        for tensor_name, tensor in child.named_parameters(recurse=False):
            if tensor.ndim == 2 and tensor.shape[0] == count:
                yield take(path, tensor_name, 0, count, runs(positions))
                if hasattr(child, "normalized_shape"):
                    yield assign(path, "normalized_shape", [len(positions), *tensor.shape[1:]])


# ---------------------------------------------------------------------------------------------- the rest
def _extras(move: Move) -> Iterator[Edit]:
    """Whatever else holds one entry per head, found by shape: output gates, sinks, biases, position maps."""
    anatomy, heads, d = move.anatomy, len(move.now.present), move.head_dim
    known = {anatomy.query, anatomy.key, anatomy.value, anatomy.fused, anatomy.fused_kv}
    known |= {name for name, _, _ in _norm_names(move.module)} | set(families.NOT_PER_HEAD)
    known.discard("")
    for name, child in move.module.named_modules():
        path = f"{move.path}.{name}" if name else move.path
        if name.split(".")[0] in known or path == anatomy.output:
            continue
        if is_linear(child):
            out = _features(child, 0)
            by_query = _query_width(move)
            if out in (heads, heads * d, by_query):
                yield from linear(move.model, path, runs(move.query, out // heads), axis=0)
            elif out == len(move.now.kv) * d:
                yield from linear(move.model, path, runs(move.kv, d), axis=0)
            continue
        if name.split(".")[-1] in families.OUTER_NORMS:
            continue
        yield from _parameters(move, path, child, anatomy.bare and not name)


def _query_width(move: Move) -> int:
    query = move.anatomy.query
    return _features(move.module.get_submodule(query), 0) if query and not move.anatomy.bare else -1


def _parameters(move: Move, path: str, owner: nn.Module, bare: bool) -> Iterator[Edit]:
    heads, d = len(move.now.present), move.head_dim
    tensors = [*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)]
    for name, tensor in tensors:
        if (bare and name in "qkvor") or name in families.TABLES or name in families.NOT_PER_HEAD:
            continue
        if "Norm" in type(owner).__name__ and tensor.ndim == 1 and tensor.shape[0] == heads * d:
            raise CannotCut(f"{path}: a norm over the contexts of all heads stands before the output projection")
        shape = tuple(tensor.shape)
        if isinstance(owner, nn.Embedding) and shape[-1] in (heads, heads * d):
            yield take(path, name, 1, shape[1], runs(move.query, shape[1] // heads))
            yield assign(path, "embedding_dim", len(move.query) * shape[1] // heads)
        elif shape in ((heads,), (heads, 1), (heads, 1, 1), (heads, d), (heads, 1, d)):
            yield take(path, name, 0, heads, runs(move.query))
        elif shape in ((1, heads, 1, 1), (1, heads, 1, d), (1, heads, d), (1, heads, 1)):
            yield take(path, name, 1, heads, runs(move.query))
        elif shape == (heads * d,):
            yield take(path, name, 0, heads * d, runs(move.query, d))
        elif len(shape) >= 2 and shape[-2:] == (heads, d):
            yield take(path, name, len(shape) - 2, heads, runs(move.query))


def _tables(move: Move) -> Iterator[Edit]:
    """Bias tables with a column per head, in the module, in a child, or (BEiT) beside the module."""
    heads = len(move.now.present)
    scopes = [(move.path, move.module)]
    parent_path = move.path.rpartition(".")[0]
    if not _shares_bias(move):
        parent = move.model.get_submodule(parent_path)
        scopes += [(f"{parent_path}.{n}", c) for n, c in parent.named_children() if "bias" in n.lower()]
    for scope, owner in scopes:
        for name, child in owner.named_modules():
            path = f"{scope}.{name}" if name else scope
            for tensor_name, tensor in child.named_parameters(recurse=False):
                if tensor_name in families.TABLES and tensor.shape[-1] == heads:
                    yield take(path, tensor_name, tensor.ndim - 1, heads, runs(move.query))


def _copied_table(move: Move, site: Site) -> Iterator[Edit]:
    """The columns of a table that this cut has just given to a block: the model does not show it yet."""
    fact = families.HANDED_TABLES.get(type(move.module).__name__)
    if fact is not None and site.kind == "self" and getattr(move.module, fact[1], None) is None:
        yield take(f"{move.path}.{fact[1]}", "weight", 1, move.now.heads, runs(move.query))


def _shares_bias(move: Move) -> bool:
    """BEiT's shared bias reaches the module added to the mask, so the selection sits on that argument."""
    return bool(getattr(getattr(move.model, "config", None), "use_shared_relative_position_bias", False))


def _arguments(move: Move) -> Iterator[Edit]:
    arguments = families.HEAD_ARGUMENTS.get(type(move.module).__name__, ())
    if _shares_bias(move):
        arguments = (*arguments, ("attention_mask", 1))
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
    stack = move.path.split(".layer.")[0].rpartition(".")[0]
    if stack in handed or _dropped(move.module, argument):
        return
    handed.add(stack)
    blocks = [(path, module) for path, module in move.model.named_modules()
              if path.startswith(stack + ".") and type(module) is type(move.module)]  # fmt: skip
    owner = next((path for path, module in blocks if getattr(module, table, None) is not None), "")
    for path, _ in blocks:
        # Cross-attention has the same class but never a table: it is told apart by its name.
        if path.rpartition(".")[2] == owner.rpartition(".")[2] and path != owner:
            yield {"edit": "copy", "module": path, "name": table, "from": f"{owner}.{table}"}
            yield assign(path, "has_relative_attention_bias", True)
        yield {"edit": "argument", "module": path, "argument": argument}


def _dropped(module: nn.Module, argument: str) -> bool:
    return any(getattr(hook, "argument", None) == argument for hook in module._forward_pre_hooks.values())


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
        if path == move.anatomy.output or is_linear(child):
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
