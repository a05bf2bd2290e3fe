"""Gates: silence or scale heads at the input of the output projection, and give everything back.

A gate multiplies one head's context where the heads are handed to the output projection. There it works
under any attention kernel, equals physical removal, and is differentiable.
"""

from __future__ import annotations

import contextlib
import difflib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.analysis.errors import BadInput, HeadwiseError
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.sites import Site, families, find_sites

Heads = Mapping[str, Sequence[int]]
Visit = Callable[[Site, Tensor], Tensor | None]


@contextlib.contextmanager
def gated(
    model: nn.Module, heads: Heads | None = None, *, gates: Mapping[str, Tensor] | None = None
) -> Iterator[nn.Module]:
    """The same model with some heads silenced or scaled, for as long as the block lasts.

    Compiled models run uncompiled in it: compiled code would not see the gates.

    Args:
        model: a model that `find_sites` understands, dense or cut.
        heads: site name to the ORIGINAL indices of the heads to silence.
        gates: site name to a tensor `[heads]` (all heads of the dense site), 1 = as trained, 0 = silenced;
            gradients flow into it.

    Raises:
        BadInput: for an unknown site, a head out of range, or a gate of the wrong length.
        HeadwiseError: if a site ran and its gate was not passed through.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32)).eval()
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> with torch.no_grad(), gated(model, {"0": [1, 3]}):
    ...     silenced = model(ids).last_hidden_state
    """
    sites = find_sites(model)
    checked = check_heads(sites, heads or {})
    scales = {name: _scale(sites[name], silenced) for name, silenced in checked.items() if silenced}
    for name, gate in (gates or {}).items():
        if name not in sites:
            raise BadInput(unknown_site(name, sites))
        if gate.shape[-1] != sites[name].heads:
            raise BadInput(f"gate of site {name}: got {tuple(gate.shape)}, expected [{sites[name].heads}]")
        scales[name] = gate * scales[name].to(gate) if name in scales else gate

    with contextlib.ExitStack() as stack:
        stack.enter_context(hooked([model.register_forward_pre_hook(_gates_are_set)]))
        called = {name: sites[name] for name in scales if not never_called(model, sites[name])}
        for name in scales:
            if name not in called:
                stack.enter_context(_scaled_weight(model, sites[name], scales[name]))
        stack.enter_context(
            at_projections(model, called, lambda site, context: context * _columns(site, scales[site.name], context))
        )
        yield model


def _gates_are_set(module: nn.Module, args: Any) -> None:
    """A hook that does nothing: the mark of a model in a block of `gated`, which its copies keep."""


def refuse_gated(model: nn.Module, what: str) -> None:
    """Refuse what would not know of gates: they are no part of the weights.

    Raises:
        BadInput: heads of the model, or of a part of it, are silenced just now.
    """
    if any(_gates_are_set in module._forward_pre_hooks.values() for module in model.modules()):
        raise BadInput(
            f"{what}: heads of this model are silenced by `gated`, which changes no weight. Leave its block first; of a copy "
            "that was made in the block, make it outside. To lose the heads for good, cut them."
        )


@contextlib.contextmanager
def contexts(model: nn.Module, sites: Mapping[str, Site] | None = None) -> Iterator[dict[str, list[Tensor]]]:
    """What the heads hand to the output projections, collected while the block lasts.

    Args:
        model: a model that `find_sites` understands.
        sites: which sites to watch; all by default.

    Yields:
        site name to the contexts `[batch, query, kept*head_dim]` of every forward pass in the block. Clear
        the lists between batches: they are what grows.

    Raises:
        BadInput: if a site's projection is read without being called, so that its input is never seen.
    """
    sites = find_sites(model) if sites is None else sites
    seen: dict[str, list[Tensor]] = {name: [] for name in sites}
    unseen = [name for name, site in sites.items() if never_called(model, site)]
    if unseen:
        raise BadInput(
            f"sites {', '.join(unseen)}: the output projection is read without being called, so the contexts cannot "
            "be seen; leave these sites out."
        )

    with at_projections(model, sites, lambda site, context: seen[site.name].append(context)):
        yield seen


@contextlib.contextmanager
def at_projections(model: nn.Module, sites: Mapping[str, Site], visit: Visit) -> Iterator[None]:
    """Call `visit(site, context)` on the input of each output projection; a returned tensor replaces it.

    Shared modules (ALBERT) are told apart by counting calls, afresh in every forward pass of the model.
    """
    watches = _Watches(sites, visit)
    with hooked(_set(model, sites, watches)):
        yield
        watches.check()


def _set(model: nn.Module, sites: Mapping[str, Site], watches: _Watches) -> Iterator[RemovableHandle]:
    yield model.register_forward_pre_hook(watches.begin)
    for path in {site.output for site in sites.values()}:
        yield model.get_submodule(path).register_forward_pre_hook(watches.at(path))
    for path in {site.module for site in sites.values()}:
        yield model.get_submodule(path).register_forward_hook(watches.ran(path))


class _Watches:
    """Counts which calls of which module passed through a projection."""

    def __init__(self, sites: Mapping[str, Site], visit: Visit) -> None:
        self.visit = visit
        self.calls: dict[str, dict[int, Site]] = {}
        self.modules: dict[str, str] = {}
        for site in sites.values():
            self.calls.setdefault(site.output, {})[site.call] = site
            self.modules[site.module] = site.output
        self.passed: dict[str, int] = dict.fromkeys(self.calls, 0)
        self.total: dict[str, int] = dict.fromkeys(self.calls, 0)
        self.ran_modules: set[str] = set()

    def begin(self, module: nn.Module, args: Any) -> None:
        self.passed = dict.fromkeys(self.calls, 0)

    def at(self, path: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda module, args: self._passes(path, args)

    def _passes(self, path: str, args: tuple[Any, ...]) -> Any:
        calls = next(iter(self.calls[path].values())).calls
        site = self.calls[path].get(self.passed[path] % calls)
        self.passed[path] += 1
        self.total[path] += 1
        changed = None if site is None else self.visit(site, args[0])
        return None if changed is None else (changed, *args[1:])

    def ran(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, args, output: self.ran_modules.add(path)

    def check(self) -> None:
        for module in sorted(self.ran_modules):
            output = self.modules[module]
            # A sibling projection (BERT) runs after its module: a pass cut short between the two is no fault.
            if self.total[output] == 0:
                raise HeadwiseError(
                    f"{module} ran, but its output projection {output} was never called: it reads the weight "
                    "directly, so hooks cannot reach its heads. Add its class to families.NEVER_CALLED."
                )


def check_heads(sites: Mapping[str, Site], heads: Heads) -> dict[str, list[int]]:
    """Heads per site, sorted, after every name and index has been checked; all mistakes at once.

    Raises:
        BadInput: for unknown sites, heads that are no integers, out of range, or named twice.

    >>> check_heads({"0": Site("0", "a", "a.o", heads=4, kv_heads=4, head_dim=8)}, {"0": [3, 1]})
    {'0': [1, 3]}
    """
    mistakes, checked = [], {}
    if not isinstance(heads, Mapping):
        raise BadInput(f"heads: got {type(heads).__name__}, expected a mapping of site names to head indices")
    for name, listed in heads.items():
        if name not in sites:
            mistakes.append(unknown_site(name, sites))
            continue
        count = sites[name].heads
        if isinstance(listed, str) or not isinstance(listed, Iterable):
            mistakes.append(f"site {name}: got {listed!r}, expected a list of head indices")
            continue
        indices = [_index(head) for head in listed]
        wrong = [head for head in indices if not isinstance(head, int) or not 0 <= head < count]
        if wrong:
            mistakes.append(
                f"site {name}: no head {wrong[0]!r}; its heads are 0 to {count - 1}, counted as in the dense model"
            )
        elif len(set(indices)) < len(indices):
            mistakes.append(f"site {name}: head {next(h for h in indices if indices.count(h) > 1)} is named twice")
        else:
            checked[name] = sorted(indices)
    if mistakes:
        raise BadInput("; ".join(mistakes))
    return checked


def _index(head: Any) -> Any:
    """A head as a plain integer, also one of numpy's or torch's; anything else as it is, to be told."""
    if isinstance(head, bool):
        return repr(head)
    try:
        return operator.index(head)
    except TypeError:
        return head


def unknown_site(name: object, sites: Mapping[str, Site]) -> str:
    """The message for a site that is not there, with the nearest names and the valid ones."""
    names = list(sites)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"no site {name!r}; {hint}the sites of this model are {listed}"


def never_called(model: nn.Module, site: Site) -> bool:
    """Whether the site's output projection is read without being called, so that hooks on it never fire."""
    return ":" in site.output or type(model.get_submodule(site.module)).__name__ in families.NEVER_CALLED


def _scale(site: Site, silenced: Sequence[int]) -> Tensor:
    scale = torch.ones(site.heads)
    scale[list(silenced)] = 0.0
    return scale


def _columns(site: Site, gate: Tensor, like: Tensor) -> Tensor:
    """A gate per original head as a factor per column of the projection's input."""
    kept = gate[..., list(site.kept)] if site.kept else torch.ones_like(gate[..., :1])
    columns = kept.to(device=like.device, dtype=like.dtype).repeat_interleave(site.head_dim, dim=-1)
    return columns if columns.ndim == 1 else columns.unsqueeze(1)


@contextlib.contextmanager
def _scaled_weight(model: nn.Module, site: Site, gate: Tensor) -> Iterator[None]:
    """Scale the projection's columns instead of its input, for projections that are never called."""
    path, _, bare = site.output.partition(":")
    module, name = model.get_submodule(path), bare or "weight"
    before = dict(module._parameters)
    weight = before[name]
    if weight is None:
        raise HeadwiseError(f"{site.output} has no weight to scale")
    if bare:
        kept = gate[list(site.kept)] if site.kept else torch.ones(1)
        scaled = weight * kept.to(weight).reshape(1, -1, 1)
    else:
        scaled = weight * _columns(site, gate, weight)
    del module._parameters[name]
    object.__setattr__(module, name, scaled)
    try:
        yield
    finally:
        object.__delattr__(module, name)
        module._parameters.clear()
        module._parameters.update(before)
