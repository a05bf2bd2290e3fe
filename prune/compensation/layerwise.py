"""Layer by layer: what enters the next layer is kept by batch, so that nothing before it runs again."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import HeadwiseError
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.uncached import uncached
from headwise.analysis.sites import Site
from headwise.prune.free_memory import free_beside

log = logging.getLogger("headwise")

#: The most that streams, masks and the like may take of what is free; beyond, every layer is reached from the inputs.
MOST = 0.2
#: How far a stream may be from what the whole model gives, relative to its largest entry.
ROUNDING = 1e-4
#: What a layer may be told beside tensors and containers of these.
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Reached(Exception):
    """What was wanted has been seen; the rest of the model need not run."""


@dataclass(frozen=True)
class Call:
    """How a layer is called: all that it is told but the stream, which is its first floating tensor.

    Attributes:
        args: by place.
        named: by name.
        where: place or name of the stream.
    """

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    where: int | str

    def with_stream(self, stream: Tensor | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for this stream, or with its place left empty."""
        args = tuple(stream if place == self.where else value for place, value in enumerate(self.args))
        return args, {name: stream if name == self.where else value for name, value in self.named.items()}

    def told(self) -> list[Any]:
        """Tensors and other values, in order."""
        return list(_leaves((self.args, self.named)))


@dataclass
class Layers:
    """Layers that run one after the other, and what enters the one at hand.

    Attributes:
        model: whose layers they are; their weights may change between two runs.
        paths: where they are, in the order in which they run.
        calls: how each is called, [batch][layer].
        streams: what enters the layer at hand, by batch.
        at: the layer at hand.
    """

    model: nn.Module
    paths: Sequence[str]
    calls: list[list[Call]]
    streams: list[Tensor]
    at: int = 0

    def run(self, batch: int) -> Tensor:
        """The layer at hand on one batch; what leaves it."""
        path = self.paths[self.at]
        args, named = self.calls[batch][self.at].with_stream(self.streams[batch])
        left = stream_of(self.model.get_submodule(path)(*args, **named))
        if left is None:
            raise HeadwiseError(f"{path} handed on a tensor when it was tried, and none on batch {batch}")
        return left

    def reach(self, path: str) -> None:
        """Go on to a layer that is not yet behind."""
        while self.paths[self.at] != path:
            self.streams = [self.run(batch) for batch in range(len(self.streams))]
            self.at += 1

    def on(self, model: nn.Module, batch: Batch) -> Layers | None:
        """The same of a model whose layer at hand is called with the same on the first batch; None if it is not."""
        passed = _pass(model, self.paths[self.at : self.at + 1], batch, through=False)
        if passed is None or not _equal(passed.entered[0], self.streams[0]):
            return None
        if not _same(passed.calls[0], self.calls[0][self.at]):
            return None
        return Layers(model, self.paths, self.calls, list(self.streams), self.at)


def stack_of(model: nn.Module, site: Site) -> tuple[str, int] | None:
    """Path of the outermost module list that a site is in, and in which of its items.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> stack_of(model, find_sites(model)["1"])
    ('encoder.layer', 1)
    """
    parts = site.module.split(".")
    for length in range(1, len(parts)):
        path = ".".join(parts[:length])
        if isinstance(model.get_submodule(path), nn.ModuleList):
            return path, int(parts[length])
    return None


def layers_from(model: nn.Module, paths: Sequence[str], batches: Iterable[Batch]) -> Layers | None:
    """Layers with what enters the first of them, by one pass of the model; None if they cannot be run one by one.

    They can if a pass calls each once, in order, with what the one before gave, if nothing else that they are told
    depends on that (masks, rotary angles and position biases do not), and if none writes into what it is told. This is
    tried on the first batch, also with another stream: layer by layer it has to give what it gives in the model.
    """
    layers = Layers(model, paths, [], [])
    size, free = 0, free_beside(model)
    for batch in batches:
        passed = _pass(model, paths, batch, through=not layers.calls)
        if passed is None or (not layers.calls and not _one_by_one(model, paths, batch, passed)):
            return None
        layers.calls.append(passed.calls)
        layers.streams.append(passed.entered[0])
        tensors = [told for call in passed.calls for told in call.told() if isinstance(told, Tensor)]
        size += sum(tensor.nbytes for tensor in {id(t): t for t in (passed.entered[0], *tensors)}.values())
        if free is not None and size > MOST * free:
            log.info(
                "layers are reached from the inputs: what enters them would take too much of the memory that is free"
            )
            return None
    return layers if layers.calls else None


def stream_into(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[int | str, Tensor] | None:
    """The stream that a layer is told, and by which place or name: the first of it that is a floating tensor.

    >>> stream_into((torch.ones(1, dtype=torch.long),), {"mask": None, "hidden_states": torch.ones(1)})
    ('hidden_states', tensor([1.]))
    """
    told: list[tuple[int | str, Any]] = [*enumerate(args), *named.items()]
    floating = ((where, value) for where, value in told if isinstance(value, Tensor) and value.is_floating_point())
    return next(floating, None)


def stream_of(output: Any) -> Tensor | None:
    """What a layer hands on: its output, or the first of its outputs; None if that is no tensor.

    >>> stream_of((torch.ones(1), None)).tolist()
    [1.0]
    """
    while isinstance(output, (list, tuple, Mapping)):
        output = next(iter(output.values() if isinstance(output, Mapping) else output), None)
    return output if isinstance(output, Tensor) else None


def run_from_start(model: nn.Module, batch: Batch) -> None:
    """The model on one batch, until what was wanted is `Reached`."""
    with contextlib.suppress(Reached):
        model(**{**uncached(model), **batch.inputs})


@dataclass
class _Passed:
    """What a pass of the model showed of layers.

    Attributes:
        calls: how each was called.
        entered: the streams.
        left: what each handed on.
    """

    calls: list[Call]
    entered: list[Tensor]
    left: list[Tensor]


def _pass(
    model: nn.Module, paths: Sequence[str], batch: Batch, *, through: bool = True, turned: bool = False
) -> _Passed | None:
    """A pass of the model through some of its layers; None unless each was called once, in order, and only hands on.

    Args:
        model: what runs.
        paths: of the layers.
        batch: what it runs on.
        through: whether the last of them is run, too.
        turned: whether another stream enters the first: the same numbers in another order.
    """
    order: list[str] = []
    passed = _Passed([], [], [])
    versions: list[object] = []

    def enters(path: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        order.append(path)
        found = stream_into(args, named)
        if found is None:
            return None
        where, value = found
        call = Call(*Call(args, named, where).with_stream(None), where)
        value = value.flip(-1) if turned and path == paths[0] else value
        passed.calls.append(call)
        passed.entered.append(value)
        versions[:] = _versions(value, call)
        if path == paths[-1] and not through:
            raise Reached
        return call.with_stream(value)

    def leaves(path: str, output: Any) -> None:
        left = stream_of(output)
        if left is None or len(passed.calls) < len(order):
            raise Reached
        if versions == _versions(passed.entered[-1], passed.calls[-1]):
            passed.left.append(left)  # else it wrote into what is to be shown to it again
        if path == paths[-1]:
            raise Reached

    def watches() -> Iterator[RemovableHandle]:
        for path in paths:
            module = model.get_submodule(path)
            yield module.register_forward_pre_hook(
                lambda _module, args, named, path=path: enters(path, args, named), with_kwargs=True
            )
            yield module.register_forward_hook(lambda _module, _args, output, path=path: leaves(path, output))

    with hooked(watches()):
        run_from_start(model, batch)
    seen = order == list(paths) and len(passed.calls) == len(paths)
    return passed if seen and len(passed.left) == len(paths) - (not through) else None


def _versions(stream: Tensor, call: Call) -> list[object]:
    """How often all that a layer is told was written into; of tensors that do not count it, what equals nothing."""
    tensors = (told for told in (stream, *call.told()) if isinstance(told, Tensor))
    return [object() if told.is_inference() else told._version for told in tensors]


def _one_by_one(model: nn.Module, paths: Sequence[str], batch: Batch, passed: _Passed) -> bool:
    """Whether the layers run by themselves give what they give in the model, whatever stream enters."""
    other = _pass(model, paths, batch, turned=True)
    if other is None or not all(map(_same, passed.calls, other.calls)):
        return False
    if not all(map(_equal, passed.left[:-1], passed.entered[1:])):
        return False
    trial = Layers(model, paths, [passed.calls, passed.calls], [passed.entered[0], other.entered[0]])
    trial.reach(paths[-1])
    return all(_close(trial.run(place), wanted.left[-1]) for place, wanted in enumerate((passed, other)))


def _same(mine: Call, its: Call) -> bool:
    told = list(itertools.zip_longest(mine.told(), its.told(), fillvalue=...))
    return all(
        _equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else isinstance(a, PLAIN) and a == b
        for a, b in told
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _close(mine: Tensor, its: Tensor) -> bool:
    return float((mine - its).abs().max()) <= ROUNDING * float(its.abs().max())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value
