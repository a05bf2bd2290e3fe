"""In order: refit one projection after the other while a dense copy says what each should give."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import at_projections, gated, never_called
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.apply import columns_of
from headwise.prune.compensation.layerwise import Layers, Reached, layers_from, run_from_start, stack_of, stream_into
from headwise.prune.compensation.pairs import Pairs
from headwise.prune.importance.finite import require_finite
from headwise.prune.importance.gradients import by_token, held_out, valid_rows
from headwise.prune.selection.blocks import Block, blocks_of

#: Context of a call of a block, and what entered its layer where that is known.
_Seen = tuple[Tensor, Tensor | None]


def refit_in_order(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Iterable[Batch],
    remove: Mapping[str, Sequence[int]],
    *,
    ridge: float,
    stream: bool,
    with_bias: bool,
) -> dict[str, Any]:
    """Refit the output projections from the first loss on, in place, and say what it brought.

    Args:
        model: the dense model; it changes.
        sites: its sites.
        batches: calibration texts, read once per stack of layers, or twice per site where layers do not run alone.
        remove: original indices by site.
        ridge: added to the diagonal, in units of its mean; draws towards the weights as they are.
        stream: whether errors of the residual stream before a block are part of its target.
        with_bias: whether a bias is refitted where there is one.

    Returns:
        `measured_on` and `sites`: relative error of what the block should give, before and after, on held-out
        texts (on all if too few are held out).

    Raises:
        BadInput: a site whose contexts cannot be seen, or whose output is not finite.
    """
    gates = {name: [head for head in heads if head in sites[name].kept] for name, heads in remove.items()}
    gates = {name: heads for name, heads in gates.items() if heads}
    report: dict[str, dict[str, float]] = {}
    measured_on = "held-out" if gates else "nothing"
    # Nothing before the first loss can be wrong.
    affected = [block for block in blocks_of(sites).values() if {site.name for site in block.sites} & set(gates)]
    later = list(blocks_of(sites).values())
    later = later[later.index(affected[0]) :] if affected else []
    unseen = [site.name for block in later for site in block.sites if never_called(model, site)]
    if unseen:
        raise BadInput(
            f"sites {', '.join(unseen)}: the output projection is read without being called, so contexts cannot be "
            "seen; use compensation none"
        )
    dense = copy.deepcopy(model)
    with still(model, dense), torch.no_grad(), gated(model, gates):
        walk = _Walk(dense, model, batches, later)
        for block in track(later, label="Repairing site by site"):
            walk.reach(block)
            fit, held = _measured(walk, block, layer_of(model, block.sites[0], sites) if stream else None)
            if not fit.tokens or not held.tokens:
                fit = held = fit + held
                measured_on = "fit"
            gone = columns_of(block.sites[0], gates.get(block.name, ()))
            change, moved = fit.solve(gone, ridge, with_bias and output_bias(model, block.sites[0]) is not None)
            errors = {"error_before": held.error(), "error_after": held.error(change, moved)}
            _write(model, block.sites[0], change, moved)
            report.update({site.name: errors for site in block.sites})
    return {"measured_on": measured_on, "sites": report}


class _Walk:
    """The dense and the pruned model on their way through the blocks, layer by layer where layers run alone.

    Where they do not (layers that are called again, encoders of which a decoder reads), a block is reached from the
    model's inputs each time.
    """

    def __init__(self, dense: nn.Module, model: nn.Module, batches: Iterable[Batch], blocks: Sequence[Block]) -> None:
        self.models, self.batches = (dense, model), batches
        # A block that is called several times is in no one place.
        self.places = {b.name: stack_of(model, b.sites[0]) if len(b.sites) == 1 else None for b in blocks}
        self.stack: str | None = None
        self.layers: tuple[Layers, Layers] | None = None
        self.begun = False

    def reach(self, block: Block) -> None:
        """Go on to a block; all before it are repaired."""
        place = self.places[block.name]
        stack = place[0] if place else None
        if stack != self.stack:
            self.stack, self.layers = stack, self._enter(*place) if place else None
        if self.layers and place:
            for layers in self.layers:
                layers.reach(f"{stack}.{place[1]}")
        self.begun = True

    def _enter(self, stack: str, first: int) -> tuple[Layers, Layers] | None:
        last = max(place[1] for place in self.places.values() if place and place[0] == stack)
        paths = [f"{stack}.{index}" for index in range(first, last + 1)]
        right, pruned = self.models
        wanted = layers_from(right, paths, self.batches)
        if wanted is None:
            return None
        # Before the first block that loses heads both models are the same, if blocks run in the order of their names.
        same = None if self.begun else wanted.on(pruned, next(iter(self.batches)))
        given = same or layers_from(pruned, paths, self.batches)
        return None if given is None else (wanted, given)

    def seen(self, block: Block, layer: str | None) -> Iterator[tuple[Batch, list[_Seen], list[_Seen]]]:
        """By batch, context and incoming stream of every call of the block, of the dense and of the pruned model."""
        for index, batch in enumerate(self.batches):
            found = []
            for which, model in enumerate(self.models):
                with _watched(model, block, layer) as seen, contextlib.suppress(Reached):
                    if self.layers:
                        self.layers[which].run(index)
                    else:
                        run_from_start(model, batch)
                found.append(seen)
            yield batch, found[0], found[1]


def _measured(walk: _Walk, block: Block, layer: str | None) -> tuple[Pairs, Pairs]:
    """What the pruned block sees and lacks, on the texts that fit and on those held out."""
    dense, model = walk.models
    site = block.sites[0]
    weight, bias = output_weight(dense, site), output_bias(dense, site)
    own, own_bias = output_weight(model, site), output_bias(model, site)
    out, columns = weight.shape
    fit, held = (Pairs.zeros(out, columns, weight.device) for _ in range(2))
    for batch, wanted, given in walk.seen(block, layer):
        apart = held_out(batch.texts)
        for call, (right, before), (seen, entered) in zip(block.sites, wanted, given, strict=True):
            valid = valid_rows(call, right, batch)
            right, seen = by_token(right, valid), by_token(seen, valid)
            size = right @ weight.to(right).T
            missing = size - seen @ own.to(seen).T
            if bias is not None and own_bias is not None:
                missing = missing + (bias - own_bias).to(missing)
            if before is not None and entered is not None:
                missing = missing + by_token(before, valid) - by_token(entered, valid)
            told = torch.cat([size, missing], -1).masked_fill(~valid.unsqueeze(-1), 0.0)
            require_finite(told.square().sum(1), f"site {call.name}: what it writes", batch)
            for pairs, rows in ((fit, ~apart), (held, apart)):
                chosen = valid & rows.to(valid.device).unsqueeze(-1)
                pairs.add(seen[chosen], missing[chosen], size[chosen])
    return fit, held


@contextlib.contextmanager
def _watched(model: nn.Module, block: Block, layer: str | None) -> Iterator[list[_Seen]]:
    """Context and incoming stream of every call of a block in the pass that is made within, which ends there."""
    seen: list[_Seen] = []
    streams: list[Tensor] = []

    def visit(_site: Site, context: Tensor) -> None:
        seen.append((context, streams[-1] if streams else None))
        if len(seen) == len(block.sites):
            raise Reached

    def note(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        stream = stream_into(inputs, named)
        if stream is not None:
            streams.append(stream[1])

    doors = [] if layer is None else [model.get_submodule(layer)]
    watches = (door.register_forward_pre_hook(note, with_kwargs=True) for door in doors)
    with hooked(watches), at_projections(model, {site.name: site for site in block.sites}, visit):
        yield seen


def layer_of(model: nn.Module, site: Site, sites: Mapping[str, Site]) -> str | None:
    """Path of the layer whose input is the residual stream that a site adds to, or None where that is not known.

    A layer is an item of a module list. Only the first site of a layer adds to what entered it.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> layer_of(model, find_sites(model)["1"], find_sites(model))
    'encoder.layer.1'
    """
    parts = site.module.split(".")
    for length in range(len(parts), 1, -1):
        path = ".".join(parts[:length])
        if isinstance(model.get_submodule(".".join(parts[: length - 1])), nn.ModuleList):
            within = [other.name for other in sites.values() if f"{other.module}.".startswith(f"{path}.")]
            return path if within[:1] == [site.name] else None
    return None


def _write(model: nn.Module, site: Site, change: np.ndarray, moved: np.ndarray) -> None:
    weight, bias = output_weight(model, site), output_bias(model, site)
    weight += torch.from_numpy(change).to(weight)
    if bias is not None:
        bias += torch.from_numpy(moved).to(bias)
