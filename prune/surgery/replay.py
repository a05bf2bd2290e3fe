"""Replay: apply recorded edits to a freshly built dense model.

This file knows no family and imports torch alone: a saved checkpoint carries its text, so that it opens
where headwise is not installed. Every edit is a plain dictionary; `edits.py` says what each one means.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.analysis.sites.paths import root_path


def replay(model: nn.Module, edits: list[dict[str, Any]]) -> None:
    """Apply edits in their order; those of a stack that this class lacks are left out.

    Args:
        model: a model of the class the edits were made for, with any head; changed in place.
        edits: as `headwise.prune.surgery.edits` describes them.

    Raises:
        ValueError: if an edit names a module that is not there or rows that do not exist.
    """
    for edit in edits:
        path = root_path(model, edit["module"])
        if path is not None:
            _KINDS[edit["edit"]](model, model.get_submodule(path), edit)


def _take(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    name, axis = edit["tensor"], edit["axis"]
    tensor = getattr(module, name)
    if tensor is None:
        return
    runs = edit["runs"]
    if tensor.shape[axis] != edit["of"]:
        raise ValueError(
            f"{edit['module']}.{name}: axis {axis} has {tensor.shape[axis]} entries, the edit expects {edit['of']}"
        )
    kept = torch.cat([tensor.detach().narrow(axis, start, stop - start) for start, stop in runs], dim=axis).contiguous()
    if isinstance(tensor, nn.Parameter):
        # The same Parameter object keeps tied weights tied and an optimizer's references alive.
        tensor.data, tensor.grad = kept, None
    else:
        module._buffers[name] = kept


def _set(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    value = edit["value"]
    setattr(module, edit["name"], tuple(value) if isinstance(value, list) else value)


def _zero(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    with torch.no_grad():
        getattr(module, edit["tensor"]).zero_()


def _copy(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    source = root_path(model, edit["from"])
    if source is None:
        raise ValueError(f"{edit['from']!r} is not there to be copied to {edit['module']!r}")
    setattr(module, edit["name"], copy.deepcopy(model.get_submodule(source)))


def _children(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    parts = getattr(module, edit["name"])
    # A key/value head may be repeated: each copy must own its tensors, or saving finds them shared.
    setattr(module, edit["name"], nn.ModuleList(copy.deepcopy(parts[index]) for index in edit["keep"]))


def _argument(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    argument, place = edit["argument"], _place_of(edit["argument"], module)
    hook = KeepArgument(argument, edit.get("axis"), edit.get("heads"), edit.get("keep"), place)
    _hook(module, "_forward_pre_hooks", hook)


def _output(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    _hook(module, "_forward_hooks", KeepOutput(edit["runs"]))


def _config(model: nn.Module, module: Any, edit: dict[str, Any]) -> None:
    config = module.config
    module.config = ConfigView(getattr(config, "_config", config), edit["values"])


def _replace(model: nn.Module, module: nn.Module, edit: dict[str, Any]) -> None:
    module.__class__ = PrunedMultiheadAttention


def _distances(model: nn.Module, module: Any, edit: dict[str, Any]) -> None:
    if not isinstance(module._relative_position_bucket, ByDistance):
        module._relative_position_bucket = ByDistance(module._relative_position_bucket)


_KINDS = {
    "take": _take, "set": _set, "zero": _zero, "copy": _copy, "children": _children,
    "argument": _argument, "output": _output, "config": _config, "replace": _replace,
    "distances": _distances,
}  # fmt: skip


def _hook(module: nn.Module, where: str, hook: Any) -> None:
    """Register a hook, replacing an earlier one for the same thing instead of stacking on it."""
    hooks = getattr(module, where)
    for key, old in list(hooks.items()):
        if type(old) is type(hook) and old.key == hook.key:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
    if where == "_forward_pre_hooks":
        module.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        module.register_forward_hook(hook)


class KeepArgument:
    """Keeps the heads of a forward argument along one axis, or drops the argument (no axis)."""

    def __init__(
        self, argument: str, axis: int | None, heads: int | None, keep: list[int] | None, place: int | None = None
    ) -> None:
        self.key = self.argument = argument
        self.axis, self.heads, self.keep, self.place = axis, heads, keep or [], place
        first = self.keep[0] if self.keep else 0
        self.neighbours = self.keep == list(range(first, first + len(self.keep)))

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Positional and keyword arguments with the heads picked."""
        place = self.place if self.place is not None else _place_of(self.argument, module)
        if place < len(args):
            return (*args[:place], self._kept(args[place]), *args[place + 1 :]), kwargs
        if kwargs.get(self.argument) is None:
            return None
        return args, {**kwargs, self.argument: self._kept(kwargs[self.argument])}

    def _kept(self, value: Any) -> Any:
        if self.axis is None:
            return None
        if isinstance(value, tuple):
            return tuple(self._kept(part) for part in value)
        if not isinstance(value, Tensor):
            return value
        heads, axis = self.heads or 1, self.axis
        if value.ndim > axis and value.shape[axis] == heads:
            return self._some(value, axis)
        if value.shape[0] % heads == 0 and value.ndim == 3:
            # batch and heads share the first axis (BLOOM's alibi)
            apart = value.unflatten(0, (-1, heads))
            return self._some(apart, 1).flatten(0, 1)
        return value

    def _some(self, value: Tensor, axis: int) -> Tensor:
        """The kept heads: a view where they are neighbours, which costs nothing."""
        if self.neighbours:
            return value.narrow(axis, self.keep[0], len(self.keep))
        return value.index_select(axis, torch.tensor(self.keep, device=value.device))


def _place_of(argument: str, module: nn.Module) -> int:
    """Where an argument stands among those of a module's forward."""
    return list(inspect.signature(module.forward).parameters).index(argument)


class ByDistance:
    """Sorts distances into buckets once for each distance instead of once for each pair of positions."""

    def __init__(self, bucket: Any) -> None:
        self.bucket = bucket

    def __call__(self, relative_position: Tensor, **options: Any) -> Tensor:
        """The bucket of every entry of a matrix whose rows and columns go on by one."""
        rows, columns = relative_position.shape
        if rows == 1:
            return self.bucket(relative_position, **options)  # type: ignore[no-any-return]
        nearest = relative_position[-1, 0]
        distances = nearest + torch.arange(rows + columns - 1, device=relative_position.device)
        found: Tensor = self.bucket(distances, **options)[relative_position - nearest]
        return found


class KeepOutput:
    """Keeps runs of the last axis of a module's output: a norm sees all heads, the rest only the kept ones."""

    def __init__(self, runs: list[list[int]]) -> None:
        self.key, self.runs = "output", runs

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The kept runs of the output."""
        return torch.cat([output[..., start:stop] for start, stop in self.runs], dim=-1)


class ConfigView:
    """A configuration with a few other numbers that reads, and writes, everything else through.

    A copy would keep the module on its old attention kernel when the model is switched to another.
    """

    def __init__(self, config: Any, values: dict[str, Any]) -> None:
        self.__dict__.update(_config=config, _values=values)

    def __getattr__(self, name: str) -> Any:
        if name in ("_config", "_values"):
            raise AttributeError(name)
        return self._values[name] if name in self._values else getattr(self._config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, name, value)

    def __reduce__(self) -> Any:
        return ConfigView, (self._config, self._values)


class PrunedMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose heads need not fill the embedding."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attend as the stock module does, over the heads that are left."""
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (functional.linear(x, w, b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for x, w, b in zip((query, key, value), weights, biases, strict=True))  # fmt: skip
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
            if mask is not None:
                mask = mask.unflatten(0, (q.shape[0], -1)) if mask.ndim == 3 else mask
                scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        maps = functional.dropout(scores.softmax(-1), self.dropout, self.training)
        out = self.out_proj((maps @ v).transpose(1, 2).flatten(2))
        shown = (maps.mean(1) if average_attn_weights else maps) if need_weights else None
        return (out if self.batch_first else out.transpose(0, 1)), shown
