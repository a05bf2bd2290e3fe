"""The pass over the data: hooks on, maps and contexts to reducers, hooks off."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import nn

from headwise.analysis.capture.hooks import Hooks
from headwise.analysis.capture.keeping import KeptPass
from headwise.analysis.capture.kernels import eager_kernel
from headwise.analysis.capture.maps import check_dense
from headwise.analysis.capture.seen import Reducer, Seen
from headwise.analysis.capture.tiles import Tiles
from headwise.analysis.corpus.batching import Batch, is_chooser
from headwise.analysis.corpus.padding import right_padded
from headwise.analysis.corpus.portions import Portions, map_bytes, shortened
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import still
from headwise.analysis.gates.uncached import uncached
from headwise.analysis.progress import track
from headwise.analysis.sites import Site

__all__ = ["Door", "Pass", "Reducer", "Seen", "capture", "tiles_agree"]

#: Bytes for one batch's maps, or one tile of every site's, where nobody says.
MEMORY = 200 * 2**20
#: How maps are come by: whole from the eager kernel, or in tiles.
Door = Literal["auto", "eager", "tiles"]
DOORS = get_args(Door)


@dataclass
class Pass:
    """What a pass over the data went through.

    Attributes:
        texts: how many.
        batches: how many.
        tiled: how many of the texts were looked at in tiles.
        excluded: rows left out because a map had NaN or no mass there, by site (only sites that had any).
        rows_by_site: rows looked at, by site.
        lost: mass that the rows lack to 1, summed, by site whose maps were looked at.
    """

    texts: int = 0
    batches: int = 0
    tiled: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    rows_by_site: dict[str, int] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Query rows looked at, over all texts, in the site that has the most."""
        return max(self.rows_by_site.values(), default=0)

    @property
    def missing(self) -> dict[str, float]:
        """Mean mass that the rows lack to 1, by site (only sites with attention sinks)."""
        rows = self.rows_by_site
        return {name: lost / rows[name] for name, lost in self.lost.items() if lost > 1e-3 * rows[name]}


def capture(
    model: nn.Module,
    batches: Iterable[Batch],
    reducers: Sequence[Reducer],
    *,
    sites: Mapping[str, Site] | None = None,
    door: Door = "auto",
    memory: int | None = None,
    kept: KeptPass | None = None,
) -> Pass:
    """Show every batch's maps and contexts to the reducers, in one pass, and leave the model as it was.

    The model runs in evaluation mode without gradients and without its task head where it can. Maps come
    through one of two doors: the eager kernel, which makes them whole; or, for long texts, tiles of rows
    recomputed from queries and keys while the model runs on the fused kernel. Padding is moved to the right
    first, so that results do not depend on the side. Only one batch's maps, or one tile of every site's, are
    alive at a time. Hooks, kernel, training and grad flags are restored, also when the pass raises.

    Args:
        model: any model whose sites are known.
        batches: of `headwise.analysis.corpus.batches`.
        reducers: what to compute; see `Reducer`.
        sites: which sites to look at; all that `find_sites` finds if not given.
        door: `eager` or `tiles` for all batches; `auto` takes tiles for batches whose maps do not fit
            `memory`, if the model's tiles agree with its eager maps.
        memory: bytes for one batch's maps or one tile of all sites; without it `auto` is eager.
        kept: where the sums are written every now and then; batches that it has already are passed over.

    Returns:
        What was gone through, and what had to be left out. Results stay with the reducers.

    Raises:
        BadInput: a site yields no maps, or maps that are not attention probabilities, or a hook did not fire
            as often as it should; or tiles were asked for and cannot be had. The message names the site and
            the way out.

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
    if door not in DOORS:
        raise BadInput(f"door: got {door!r}, expected one of {', '.join(DOORS)}")
    if sites is None:
        from headwise.analysis.sites import find_sites

        sites = find_sites(model)
    needs = frozenset[str]().union(*(reducer.needs for reducer in reducers))
    if "maps" in needs:
        check_dense(model, sites)
    went = Pass()
    choose = _Choice(model, sites, reducers, needs, door, memory)
    with still(model), torch.no_grad():
        if kept is not None:
            choose.can = kept.begin(reducers, went).get("tiles", choose.can)
            if kept.done:
                return went
        # Portions draw the bar themselves: they know how many batches they come from.
        shown = batches if isinstance(batches, Portions) else track(batches, label="looking at attention heads")
        left = shown if kept is None else itertools.islice(shown, kept.position, None)
        # Closed at once when writing fails, so that no hook outlives the pass.
        with contextlib.closing(_looked_at(model, sites, left, reducers, choose, went)) as looked:
            for _ in looked:
                if kept is not None:
                    kept.after(reducers, went, {"tiles": choose.can})
        if kept is not None:
            kept.after(reducers, went, {"tiles": choose.can}, done=True)
    return went


def _looked_at(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Iterable[Batch],
    reducers: Sequence[Reducer],
    choose: _Choice,
    went: Pass,
) -> Generator[Batch]:
    """Each batch once all reducers have seen it."""
    aligned = (right_padded(batch) for batch in batches)
    for tiled, group in itertools.groupby(aligned, key=choose):
        with choose.hooks(tiled) as hooks:
            for batch in group:
                # Choosing the door of this batch may have run the model.
                hooks.forget()
                _run(model, sites, batch, maps=not tiled and "maps" in hooks.needs)
                for seen in hooks.look(batch):
                    for reducer in reducers:
                        reducer.update(batch, seen)
                    _count(went, seen)
                    del seen
                _count_batch(went, batch, hooks.excluded, tiled)
                yield batch


class _Choice:
    """Which door a batch goes through: tiles or not."""

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[str, Site],
        reducers: Sequence[Reducer],
        needs: frozenset[str],
        door: Door,
        memory: int | None,
    ) -> None:
        self.model, self.sites, self.needs = model, sites, needs
        self.memory = memory or MEMORY
        whole = [type(reducer).__name__ for reducer in reducers if getattr(reducer, "whole", False)]
        if door == "tiles" and whole:
            raise BadInput(f"door: got 'tiles', but {', '.join(whole)} reads whole maps; use the eager door for it")
        # Unknown until a batch comes that does not fit.
        self.can: bool | None = None
        if door == "eager" or memory is None or whole or "maps" not in needs:
            self.can = False
        if door == "tiles":
            self.can = True
        self.always = door == "tiles"

    def __call__(self, batch: Batch) -> bool:
        if self.always or self.can is False:
            return self.always
        length = max((batch.width, 1, *(tokens.valid.shape[1] for tokens in batch.tokens.values())))
        heads = sum(site.heads for site in self.sites.values())
        if len(batch.texts) * map_bytes(heads, length) <= self.memory:
            return False
        if self.can is None:
            self.can = tiles_agree(self.model, self.sites, batch)
        return self.can

    @contextlib.contextmanager
    def hooks(self, tiled: bool) -> Iterator[Hooks]:
        if tiled:
            with Tiles(self.model, self.sites, self.needs, self.memory) as hooks:
                yield hooks
            return
        with (
            eager_kernel(self.model) if "maps" in self.needs else contextlib.nullcontext(),
            Hooks(self.model, self.sites, self.needs) as hooks,
        ):
            yield hooks


def tiles_agree(model: nn.Module, sites: Mapping[str, Site], batch: Batch, length: int = 48) -> bool:
    """Whether a model's maps in tiles are its eager ones, tried on the beginning of a batch's first text.

    >>> from headwise.analysis.corpus.texts import Text
    >>> tiles_agree(nn.Linear(1, 1), {}, Batch({}, [Text("a")], {}))
    False
    """
    probe = shortened(batch, length)
    needs = frozenset({"maps"})
    try:
        with Hooks(model, sites, needs) as hooks, eager_kernel(model):
            _run(model, sites, probe, maps=True)
            (eager,) = hooks.look(probe)
        with Tiles(model, sites, needs, MEMORY) as tiles:
            _run(model, sites, probe)
            found = list(tiles.look(probe))
    except (BadInput, ValueError, TypeError):
        # Whatever a family raises under a kernel that it was not written for, its eager door stays open.
        return False
    # Half precision rounds the eager maps themselves.
    most = 1e-4 if next(model.parameters()).dtype == torch.float32 else 2e-2
    for name, one in eager.items():
        rows = torch.cat([tile[name].map for tile in found if name in tile], dim=2)
        apart = (rows - one.map).abs() * one.queries[:, None, :, None]
        if rows.shape != one.map.shape or not float(apart.max()) <= most:
            return False
    return True


def _count(went: Pass, seen: Mapping[str, Seen]) -> None:
    for name, one in seen.items():
        rows = int(one.queries.sum())
        went.rows_by_site[name] = went.rows_by_site.get(name, 0) + rows
        if one.maps is not None:
            lost = float((1 - one.mass.mean(1))[one.queries].sum())
            went.lost[name] = went.lost.get(name, 0.0) + lost


def _count_batch(went: Pass, batch: Batch, excluded: Mapping[str, int], tiled: bool) -> None:
    went.texts += len(batch.texts)
    went.batches += 1
    went.tiled += len(batch.texts) if tiled else 0
    for name, count in excluded.items():
        went.excluded[name] = went.excluded.get(name, 0) + count


def _run(model: nn.Module, sites: Mapping[str, Site], batch: Batch, *, maps: bool = False) -> None:
    """One forward pass, for its side effects on the hooks; `maps`: they look at maps."""
    inputs: dict[str, Any] = dict(batch.inputs)
    config = getattr(model, "config", None)
    derives = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs
    trunk = getattr(model, "base_model", model)
    prefix = getattr(model, "base_model_prefix", "") + "."
    inside = all(site.module.startswith(prefix) and site.output.startswith(prefix) for site in sites.values())
    # A head that chooses takes its choices apart before the trunk sees them.
    if trunk is not model and inside and not is_chooser(model) and not (derives and "labels" in inputs):
        # The task head's logits are never looked at, and a large vocabulary makes them dear.
        inputs.pop("labels", None)
    else:
        trunk = model
    takes = inspect.signature(trunk.forward).parameters
    # Asked for by the config, these would have transformers plant hooks of its own that stay.
    flags = ("output_attentions", "output_hidden_states")
    asked = {flag: False for flag in flags if getattr(config, flag, False)}
    recording = any(getattr(module, "_can_record_outputs", None) for module in trunk.modules())
    if maps and "output_attentions" in takes and not recording:
        # Modules of this style (DeBERTa, MPNet) hand out maps only where they are told to, and plant nothing.
        asked["output_attentions"] = True
    trunk(**{**uncached(trunk), **inputs}, **asked)
