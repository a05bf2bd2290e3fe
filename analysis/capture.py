"""The pass over the data: hooks on, maps and contexts to reducers, hooks off."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.kernels import eager_kernel
from headwise.analysis.maps import probabilities, rows_that_count
from headwise.analysis.padding import right_padded
from headwise.analysis.progress import track
from headwise.analysis.seen import Reducer, Seen, Visibility, streams_of
from headwise.analysis.sites import Site

__all__ = ["Pass", "Reducer", "Seen", "capture"]


@dataclass
class Pass:
    """What a pass over the data went through.

    Attributes:
        texts: how many.
        batches: how many.
        rows: query rows looked at, over all texts, in the site that has the most.
        excluded: rows left out because a map had NaN or no mass there, by site (only sites that had any).
        missing: mean mass that the rows lack to 1, by site (only sites with attention sinks).
    """

    texts: int = 0
    batches: int = 0
    rows: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)


def capture(
    model: nn.Module,
    batches: Iterable[Batch],
    reducers: Sequence[Reducer],
    *,
    sites: Mapping[str, Site] | None = None,
) -> Pass:
    """Show every batch's maps and contexts to the reducers, in one pass, and leave the model as it was.

    The model runs in evaluation mode without gradients and without its task head where it can; on the eager
    kernel if a reducer needs maps. Padding is moved to the right first, so that results do not depend on the
    side. Only one batch's maps are alive at a time. Hooks, kernel, training and grad flags are restored, also
    when the pass raises.

    Args:
        model: any model whose sites are known.
        batches: of `headwise.analysis.corpus.batches`.
        reducers: what to compute; see `Reducer`.
        sites: which sites to look at; all that `find_sites` finds if not given.

    Returns:
        What was gone through, and what had to be left out. Results stay with the reducers.

    Raises:
        BadInput: a site yields no maps, or maps that are not attention probabilities, or a hook did not fire
            as often as it should; the message names the site and the way out.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.corpus import Batch, Text, Tokens
    >>> from headwise.analysis.sites import Site
    >>> from headwise.analysis.statistics import Statistics
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, vocab_size=9))
    >>> place = "encoder.layer.0.attention"
    >>> sites = {"0": Site("0", place + ".self", place + ".output.dense", 2, 2, 4, kept=(0, 1))}
    >>> ids, no = torch.tensor([[2, 5, 3]]), torch.zeros(1, 3, dtype=torch.bool)
    >>> tokens = Tokens(ids, ~no, no, ids, torch.zeros(1, 3, 2, dtype=torch.long))
    >>> seen = Statistics(sites)
    >>> capture(model, [Batch({"input_ids": ids}, [Text("a")], {"": tokens})], [seen], sites=sites).rows
    3
    """
    if sites is None:
        from headwise.analysis.sites import find_sites

        sites = find_sites(model)
    needs = frozenset[str]().union(*(reducer.needs for reducer in reducers))
    went = Pass()
    ratio: dict[str, list[float]] = {}
    with (
        _at_rest(model),
        eager_kernel(model) if "maps" in needs else contextlib.nullcontext(),
        _Hooks(model, sites, needs) as hooks,
        torch.no_grad(),
    ):
        for batch in track(batches, label="looking at attention heads"):
            aligned = right_padded(batch)
            _run(model, sites, aligned)
            seen = hooks.look(aligned)
            for reducer in reducers:
                reducer.update(aligned, seen)
            _count(went, ratio, aligned, seen, hooks.excluded)
            del seen
    went.missing = {name: lost / rows for name, (lost, rows) in ratio.items() if lost > 1e-3 * rows}
    return went


def _count(
    went: Pass,
    ratio: dict[str, list[float]],
    batch: Batch,
    seen: Mapping[str, Seen],
    excluded: Mapping[str, int],
) -> None:
    went.texts += len(batch.texts)
    went.batches += 1
    went.rows += max((int(one.queries.sum()) for one in seen.values()), default=0)
    for name, count in excluded.items():
        went.excluded[name] = went.excluded.get(name, 0) + count
    for name, one in seen.items():
        if one.maps is not None:
            lost = ratio.setdefault(name, [0.0, 0.0])
            lost[0] += float((1 - one.mass.mean(1))[one.queries].sum())
            lost[1] += float(one.queries.sum())


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, every module's own flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def _run(model: nn.Module, sites: Mapping[str, Site], batch: Batch) -> None:
    """One forward pass, for its side effects on the hooks."""
    inputs: dict[str, Any] = dict(batch.inputs)
    config = getattr(model, "config", None)
    derives = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs
    trunk = getattr(model, "base_model", model)
    prefix = getattr(model, "base_model_prefix", "") + "."
    inside = all(site.module.startswith(prefix) and site.output.startswith(prefix) for site in sites.values())
    if trunk is not model and inside and not (derives and "labels" in inputs):
        # The task head's logits are never looked at, and a large vocabulary makes them dear.
        inputs.pop("labels", None)
    else:
        trunk = model
    if "use_cache" in inspect.signature(trunk.forward).parameters:
        inputs.setdefault("use_cache", False)
    # Asked for by the config, these would have transformers plant hooks of its own that stay.
    flags = ("output_attentions", "output_hidden_states")
    trunk(**inputs, **{flag: False for flag in flags if getattr(config, flag, False)})


class _Hooks:
    """The hooks of one pass, and what they caught in the last forward pass."""

    def __init__(self, model: nn.Module, sites: Mapping[str, Site], needs: frozenset[str]) -> None:
        self.model, self.sites, self.needs = model, sites, needs
        self.outputs: dict[str, list[Any]] = {}
        self.inputs: dict[str, list[Any]] = {}
        self.element: dict[str, int] = {}
        self.excluded: dict[str, int] = {}
        self.sinks = {
            name
            for name, site in sites.items()
            if any("sink" in path for path, _ in model.get_submodule(site.module).named_parameters())
        }
        self._handles: list[Any] = []

    def __enter__(self) -> _Hooks:
        try:
            for path in dict.fromkeys(site.module for site in self.sites.values()):
                if "maps" in self.needs:
                    self._handles.append(self._watch_output(path))
            for path in dict.fromkeys(site.output for site in self.sites.values()):
                if "contexts" in self.needs:
                    self._handles.append(self._watch_input(path))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    def _forget(self) -> None:
        self.outputs.clear()
        self.inputs.clear()

    def _watch_output(self, path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self.outputs.setdefault(path, []).append(output)

        return self.model.get_submodule(path).register_forward_hook(hook)

    def _watch_input(self, path: str) -> Any:
        if ":" in path:
            raise BadInput(
                f"{path} is read without being called, so that its contexts cannot be seen; leave its site "
                "out with sites=, or ask only for measures of maps."
            )

        def hook(_module: nn.Module, inputs: Any) -> None:
            self.inputs.setdefault(path, []).append(inputs[0])

        return self.model.get_submodule(path).register_forward_pre_hook(hook)

    def look(self, batch: Batch) -> dict[str, Seen]:
        """What the last forward pass showed, site by site; forgets it afterwards."""
        self.excluded = {}
        visible = Visibility(batch)
        seen = {name: self._look_at(site, batch, visible) for name, site in self.sites.items()}
        self._forget()
        seen, self.excluded = rows_that_count(seen, self.sinks)
        return seen

    def _look_at(self, site: Site, batch: Batch, visible: Visibility) -> Seen:
        # A site that lost every head runs a ghost in their place, which nobody wants to see.
        present, real = max(1, len(site.kept)), len(site.kept)
        maps = contexts = None
        if "contexts" in self.needs:
            contexts = _by_head(site, self._caught(self.inputs, site, site.output), present)[:, :, :real]
        if "maps" in self.needs:
            output = self._caught(self.outputs, site, site.module)
            known = self.element.get(site.name)
            maps, self.element[site.name] = probabilities(site, output, len(batch.texts), present, known)
            maps = maps[:, :real]
        length = maps.shape[2] if maps is not None else contexts.shape[1] if contexts is not None else 0
        width = maps.shape[3] if maps is not None else visible.width(site, length)
        module = self.model.get_submodule(site.module)
        queries, allowed = visible(site, module, maps, length, width)
        return Seen(site, maps, contexts, queries, allowed, *streams_of(site, batch.tokens))

    def _caught(self, caught: Mapping[str, list[Any]], site: Site, path: str) -> Any:
        times = len(caught.get(path, ()))
        expected = max(site.calls, 1)
        if times != expected:
            raise BadInput(
                f"site {site.name}: the hook on {path} fired {times} times in one forward pass, expected "
                f"{expected}. The module is called another way (a fast or fused path skips it): "
                "run the model with plain modules, or leave this site out with sites=."
            )
        return caught[path][site.call]


def _by_head(site: Site, projected: Tensor, heads: int) -> Tensor:
    """The projection's input as [batch, query, head, head_dim], in float32."""
    if projected.dim() != 3 or projected.shape[-1] != heads * site.head_dim:
        raise BadInput(
            f"site {site.name}: {site.output} gets {tuple(projected.shape)}, expected [batch, query, "
            f"{heads * site.head_dim}] ({heads} heads of width {site.head_dim}). The site is described "
            "wrongly: find it again with find_sites(model)."
        )
    return projected.float().reshape(*projected.shape[:2], heads, site.head_dim)
