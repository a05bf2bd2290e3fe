"""One pass over the calibration texts that serves every score and repair: contexts, gradients, moments.

A gate multiplies a head's context at the input of the output projection, so its gradient is the product of
context and context gradient, summed over head_dim and tokens. No maps are needed, any kernel serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import at_projections, never_called
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_weight
from headwise.prune.importance.collected import Collected, Empty
from headwise.prune.importance.finite import require_finite
from headwise.prune.importance.gate_sums import GateSums
from headwise.prune.importance.grouped import Grouped
from headwise.prune.importance.parts import parts_of

#: One text in eight checks the repair that the others were fitted on, chosen by its content.
HELD_OUT = 8


def held_out(texts: Sequence[Text]) -> Bool[Tensor, " text"]:
    """Which texts check what the others were fitted on.

    >>> held_out([Text("a"), Text("a")]).unique().numel()
    1
    """
    return torch.tensor([int(text.id[:8], 16) % HELD_OUT == 0 for text in texts])


def collect(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Iterable[Batch],
    task: Any = None,
    *,
    moments: bool = True,
    slopes: bool = False,
    grouped: bool = False,
    label: str = "Reading contexts",
) -> Collected:
    """Everything that scores and repair want to know, from one pass; the model is given back as it was.

    Args:
        model: dense or cut.
        sites: the sites to watch.
        batches: calibration texts.
        task: its `losses(model, batch)` gives a differentiable loss per text, no text's loss depending on
            another text; None for a forward pass alone (unweighted moments, no gradients).
        moments: whether moments of contexts are wanted, with a task weighted by its gradients.
        slopes: whether second moments of the task's gradients at the outputs are.
        grouped: whether both are wanted by group of texts, too, where that is not too much (`resampled.MOST`).
        label: what the progress bar says.

    Raises:
        BadInput: a site whose contexts cannot be seen, no texts, contexts, gradients or a loss that are not
            finite, or a loss that is not differentiable or has no gradient at all.
    """
    unseen = [name for name, site in sites.items() if never_called(model, site)]
    if unseen:
        raise BadInput(
            f"sites {', '.join(unseen)}: the output projection is read without being called, so contexts and "
            "their gradients cannot be seen; use score magnitude, ablation or random, and no compensation"
        )
    small = grouped and Grouped.fits(_shape(model, site) for site in sites.values())
    found = Collected(weighted=task is not None, grouped=Grouped() if small else None)
    with still(model), torch.set_grad_enabled(task is not None):
        for batch in track(batches, label=label):
            _Pass(model, sites, batch, found, moments, slopes).run(task)
            found.examples += len(batch.texts)
            parts = parts_of(batch.texts).numpy()
            np.add.at(found.texts, parts, 1)
            found.batches[parts[0]] += 1
    if not found.examples:
        raise BadInput("calibration: there are no texts; give at least one")
    if task is not None and not any(bool(sums.absolute.any()) for sums in found.gates.values()):
        raise BadInput(
            "the task's loss has no gradient at any head (a divergence from the model's own predictions has "
            "none at the dense model); use a task with labels, `loss: predictions`, or score magnitude or ablation"
        )
    found.complete({name: partial(_empty, model, site) for name, site in sites.items()}, moments, slopes)
    return found


def _empty(model: nn.Module, site: Site) -> Empty:
    out, columns = _shape(model, site)
    return Empty(columns // site.head_dim, columns, out, output_weight(model, site).device)


def _shape(model: nn.Module, site: Site) -> tuple[int, int]:
    out, columns = output_weight(model, site).shape
    return out, columns


class _Pass:
    """One batch forward and, with a task, backward.

    A task may call the model more than once (both sides of a pair): a text's gradient is the sum over calls.
    """

    def __init__(
        self, model: nn.Module, sites: Mapping[str, Site], batch: Batch, found: Collected, moments: bool, slopes: bool
    ) -> None:
        self.model, self.sites, self.batch, self.found = model, sites, batch, found
        self.moments, self.slopes = moments, slopes
        self.held = held_out(batch.texts)
        self.parts = parts_of(batch.texts)
        self.leaves: list[Tensor] = []
        self.running: dict[str, list[tuple[Site, Tensor, Tensor]]] = {site.output: [] for site in sites.values()}
        self.gradients: dict[str, Tensor] = {}
        self.per_token: dict[str, Tensor] = {}
        self.pulls: dict[str, Tensor] = {}
        self.tokens: dict[str, Tensor] = {}
        self.masks: dict[str, Tensor] = {}

    def run(self, task: Any) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(hooked(self._mask_watches()))
            stack.enter_context(at_projections(self.model, self.sites, self._see if task is None else self._enter))
            if task is None:
                self.model(**self.batch.inputs)
                return
            stack.enter_context(hooked(self._output_watches()))
            losses = task.losses(self.model, self.batch)
            _check(losses, self.batch)
            # Texts do not influence one another: the gradient of the sum holds every text's own gradient.
            torch.autograd.grad(losses.sum(), self.leaves, allow_unused=True)
        self.found.losses.update(zip((text.id for text in self.batch.texts), losses.tolist(), strict=True))
        for name, gradients in self.gradients.items():
            seen = torch.cat([gradients, self.pulls[name]], -1)
            require_finite(seen, f"site {name}: the loss's gradient at its contexts", self.batch)
            if name not in self.found.gates:
                columns = self.pulls[name].shape[-1]
                self.found.gates[name] = GateSums.zeros(gradients.shape[-1], columns, gradients.device)
            self.found.gates[name].add(self.parts, gradients, self.per_token[name], self.pulls[name], self.tokens[name])

    def _see(self, site: Site, context: Tensor) -> None:
        valid = self._valid(site, context)
        seen = real_tokens(context, valid)
        # Their squares are what is summed.
        require_finite(seen.square().sum(1), f"site {site.name}: contexts", self.batch)
        self.found.add_contexts(site, seen, valid, self.held, self.parts)

    def _enter(self, site: Site, context: Tensor) -> Tensor:
        if not context.requires_grad:
            # Nothing before the first site has a gradient when weights are frozen: its context is a leaf.
            context = context.detach().requires_grad_()
            self.leaves.append(context)
        valid, seen = self._valid(site, context), context.detach()
        context.register_hook(lambda slope: self._gates(site, seen, slope, valid))
        self.running[site.output].append((site, seen, valid))
        return context

    def _leave(self, path: str) -> Any:
        return lambda module, args, output: self._left(path, output)

    def _left(self, path: str, output: Tensor) -> None:
        # Of a shared module perhaps only some calls are watched.
        if not self.running[path]:
            return
        site, context, valid = self.running[path].pop()
        if self.moments or self.slopes:
            output.register_hook(lambda slope: self._sloped(site, context, by_token(slope, valid), valid))

    def _sloped(self, site: Site, context: Tensor, slope: Tensor, valid: Tensor) -> None:
        if self.moments:
            self.found.add_contexts(site, by_token(context, valid), valid, self.held, self.parts, slope)
        if self.slopes:
            self.found.add_slopes(site, slope, valid, self.parts)

    def _scored(self, _module: nn.Module, _args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        self.found.token_scores |= isinstance(logits, Tensor) and logits.ndim > 2

    def _gates(self, site: Site, context: Tensor, slope: Tensor, valid: Tensor) -> None:
        pull = real_tokens(slope, valid)
        heads = (real_tokens(context, valid) * pull).reshape(*valid.shape, -1, site.head_dim).sum(-1)
        name = site.name
        self.gradients[name] = self.gradients.get(name, 0) + heads.sum(1)
        self.per_token[name] = self.per_token.get(name, 0) + heads.abs().sum(1)
        self.pulls[name] = self.pulls.get(name, 0) + pull.square().sum(1)
        self.tokens[name] = self.tokens.get(name, 0) + valid.sum(1)

    def _output_watches(self) -> Iterator[RemovableHandle]:
        for path in self.running:
            yield self.model.get_submodule(path).register_forward_hook(self._leave(path))
        yield self.model.register_forward_hook(self._scored)

    def _mask_watches(self) -> Iterator[RemovableHandle]:
        """Hooks that note the padding of each call: a task may call the model with other texts than the batch's."""
        doors = [self.model]
        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            doors.append(self.model.get_encoder())  # type: ignore[operator]
        elif isinstance(getattr(self.model, "base_model", None), nn.Module):
            doors.append(self.model.base_model)  # type: ignore[arg-type]
        for door in {id(door): door for door in doors}.values():
            yield door.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, _args: Any, inputs: dict[str, Any]) -> None:
        if module is self.model:
            self.masks = {}
        named = {"": "attention_mask", "decoder": "decoder_attention_mask"}
        found = {stream: inputs.get(name) for stream, name in named.items()}
        masks = {stream: mask for stream, mask in found.items() if isinstance(mask, Tensor) and mask.ndim == 2}
        self.masks.update({stream: mask.bool() for stream, mask in masks.items()})

    def _valid(self, site: Site, context: Tensor) -> Bool[Tensor, "batch query"]:
        return valid_rows(site, context, self.batch, self.masks)


def valid_rows(
    site: Site, context: Tensor, batch: Batch, masks: Mapping[str, Tensor] | None = None
) -> Bool[Tensor, "batch query"]:
    """Which rows of a site's context are real tokens.

    Streams without tokens (image patches) and lengths that the tokens do not have (pooling) have no padding.

    Args:
        site: where the context was seen.
        context: input of the output projection.
        batch: its texts.
        masks: padding of the call that is running, by stream, where it may differ from the batch's.

    Raises:
        BadInput: the context's shape is none of one row per text.
    """
    rows = len(batch.texts)
    if (context.ndim > 2 and context.shape[0] != rows) or context.shape[:-1].numel() % rows:
        raise BadInput(
            f"site {site.name}: contexts of shape {tuple(context.shape)} for {rows} texts: a task's losses must "
            "call the model with one row per text"
        )
    queries = context.shape[:-1].numel() // rows
    stream = "decoder" if site.stack == "decoder" and "decoder" in batch.tokens else ""
    tokens = batch.tokens.get(stream)
    known = [(masks or {}).get(stream), None if tokens is None else tokens.valid]
    for mask in known:
        if mask is not None and mask.shape == (rows, queries):
            return mask.to(context.device)
    return torch.ones(rows, queries, dtype=torch.bool, device=context.device)


def _check(losses: Tensor, batch: Batch) -> None:
    if losses.shape != (len(batch.texts),):
        raise BadInput(
            f"the task's losses: got shape {tuple(losses.shape)}, expected one per text [{len(batch.texts)}]"
        )
    if not losses.requires_grad:
        raise BadInput("the task's losses do not depend on the attention heads differentiably; use another score")
    require_finite(losses, "the task's loss", batch)


def by_token(tensor: Tensor, valid: Tensor) -> Float[Tensor, "batch query column"]:
    """By text and token, and at least float32: half precision overflows in squares and loses terms in sums."""
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return wide.reshape(*valid.shape, -1)


def real_tokens(tensor: Tensor, valid: Tensor) -> Float[Tensor, "batch query column"]:
    """The same, zero where padded: what a kernel leaves there may be anything, infinity included."""
    return by_token(tensor, valid).masked_fill(~valid.unsqueeze(-1), 0.0)
