"""What else holds one entry per head besides the projections, found by shape: norms, gates, sinks, biases, tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.analysis.errors import CannotCut
from headwise.analysis.sites import families
from headwise.analysis.sites.anatomy import is_linear
from headwise.prune.surgery.decision import Decision
from headwise.prune.surgery.edits import Edit, assign, runs, take
from headwise.prune.surgery.move import Move, features, linear


# ---------------------------------------------------------------------------------------------- norms
def _norm_names(module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    for name, child in module.named_children():
        if name in families.QUERY_NORMS or name in families.KEY_NORMS:
            yield name, child, name in families.KEY_NORMS


def sees_all_heads(module: nn.Module, now: Decision) -> bool:
    """Whether a norm looks across all query heads at once: then their rows must all be there."""
    for _, child, keys in _norm_names(module):
        weight, count = getattr(child, "weight", None), len(now.kv if keys else now.present)
        if weight is not None and weight.ndim == 1 and count > 1 and weight.shape[0] == _norm_width(module, keys):
            return True
    return False


def _norm_width(module: nn.Module, keys: bool) -> int:
    names = families.KEY if keys else families.QUERY
    child = next((getattr(module, name) for name in names if is_linear(getattr(module, name, None))), None)
    return features(child, 0) if child is not None else -1


def norms(move: Move) -> Iterator[Edit]:
    """The edits of query and key norms: per head, as a list of heads, or over all heads at once."""
    for name, child, keys in _norm_names(move.module):
        path, (positions, count) = f"{move.path}.{name}", move.positions(keys)
        weight: Tensor | None = getattr(child, "weight", None)
        if move.then.whole and weight is not None and weight.ndim == 1:
            if weight.shape[0] == _norm_width(move.module, keys):
                # The norm sees every head; what leaves it is picked, by place in the dense model.
                kept = move.then.kv if keys else move.then.present
                dense = move.then.kv_heads if keys else move.then.heads
                yield {"edit": "output", "module": path, "runs": runs(kept, weight.shape[0] // dense)}
            continue
        lists = [(n, c) for n, c in child.named_children() if isinstance(c, nn.ModuleList) and len(c) == count]
        for list_name, _ in lists:
            yield {"edit": "children", "module": path, "name": list_name, "keep": positions}
        for tensor_name, tensor in child.named_parameters(recurse=False):
            if tensor.ndim == 2 and tensor.shape[0] == count:
                yield take(path, tensor_name, 0, count, runs(positions))
                # Chameleon's norms average over one head's width and keep a weight per head besides.
                if getattr(child, "normalized_shape", None) == tuple(tensor.shape):
                    yield assign(path, "normalized_shape", [len(positions), *tensor.shape[1:]])


# ---------------------------------------------------------------------------------------------- the rest
def extras(move: Move) -> Iterator[Edit]:
    """Whatever else holds one entry per head, found by shape: output gates, sinks, biases, position maps."""
    anatomy, heads, d = move.anatomy, len(move.now.present), move.head_dim
    known = {anatomy.query, anatomy.key, anatomy.value, anatomy.fused, anatomy.fused_kv}
    known |= {name for name, _, _ in _norm_names(move.module)} | set(families.NOT_PER_HEAD)
    known.discard("")
    for name, child in move.module.named_modules():
        path = f"{move.path}.{name}" if name else move.path
        if known & {name, name.split(".")[0]} or path == anatomy.output:
            continue
        if is_linear(child):
            out = features(child, 0)
            if out in (heads, heads * d, _query_width(move)) or name in families.PER_HEAD_LINEAR:
                yield from linear(move.model, path, runs(move.query, out // heads), axis=0)
            elif out == len(move.now.kv) * d:
                yield from linear(move.model, path, runs(move.kv, d), axis=0)
            continue
        if isinstance(child, (nn.Conv1d, nn.Conv2d)):
            yield from _convolution(move, path, name, child)
            continue
        if name.split(".")[-1] in families.OUTER_NORMS:
            continue
        yield from _parameters(move, path, child, anatomy.bare and not name)


def _convolution(move: Move, path: str, name: str, child: Any) -> Iterator[Edit]:
    """A depthwise convolution has one filter per head, or per entry of the heads; any other mixes all of them."""
    keys = name.startswith(families.KV_CONVOLUTIONS)
    positions, count = move.positions(keys)
    if child.groups != child.out_channels or child.groups not in (count, count * move.head_dim):
        return
    width = child.groups // count
    for tensor, _ in child.named_parameters(recurse=False):
        yield take(path, tensor, 0, child.groups, runs(positions, width))
    for attribute in ("groups", "in_channels", "out_channels"):
        yield assign(path, attribute, len(positions) * width)


def _query_width(move: Move) -> int:
    query = move.anatomy.query
    return features(move.module.get_submodule(query), 0) if query and not move.anatomy.bare else -1


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


def tables(move: Move) -> Iterator[Edit]:
    """Bias tables with a column per head, in the module, in a child, or (BEiT) beside the module."""
    heads = len(move.now.present)
    scopes = [(move.path, move.module)]
    parent_path = move.path.rpartition(".")[0]
    if not shares_bias(move):
        parent = move.model.get_submodule(parent_path)
        scopes += [(f"{parent_path}.{n}", c) for n, c in parent.named_children() if "bias" in n.lower()]
    for scope, owner in scopes:
        for name, child in owner.named_modules():
            path = f"{scope}.{name}" if name else scope
            for tensor_name, tensor in child.named_parameters(recurse=False):
                if tensor_name in families.TABLES and tensor.shape[-1] == heads:
                    yield take(path, tensor_name, tensor.ndim - 1, heads, runs(move.query))


def shares_bias(move: Move) -> bool:
    """BEiT's shared bias reaches the module added to the mask, so the selection sits on that argument."""
    return bool(getattr(getattr(move.model, "config", None), "use_shared_relative_position_bias", False))
