"""One pass over the calibration texts that serves every score and repair: contexts, gradients, moments.

A gate multiplies a head's context at the input of the output projection, so its gradient is the product of
context and context gradient, summed over head_dim and tokens. No maps are needed, any kernel serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.analysis.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import at_projections, never_called
from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.prune.importance.moments import Moments

#: One text in eight checks the repair that the others were fitted on, chosen by its content.
HELD_OUT = 8


@dataclass
class GateSums:
    """Sums of the loss's gradient at a site's gates; axes are the heads that exist (`site.kept`).

    Attributes:
        absolute: sum over examples of the absolute gradient.
        outer: sum over examples of the gradients' outer product.
        per_token: sum over tokens of the absolute token gradient.
        per_batch: sum over batches of the absolute gradient of the batch's summed loss.
        tokens: how many tokens were seen.
    """

    absolute: Float[Tensor, " head"]
    outer: Float[Tensor, "head head"]
    per_token: Float[Tensor, " head"]
    per_batch: Float[Tensor, " head"]
    tokens: int = 0

    def add(self, products: Float[Tensor, "batch query head"], valid: Bool[Tensor, "batch query"]) -> None:
        """Count a batch in.

        Args:
            products: inner products of context and context gradient.
            valid: False where padded.

        >>> sums = GateSums(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
        >>> sums.add(torch.tensor([[[1.0], [-3.0]]]), torch.tensor([[True, True]]))
        >>> sums.absolute.item(), sums.per_token.item()
        (2.0, 4.0)
        """
        products = products * valid.unsqueeze(-1)
        gradients = products.sum(1).to(self.absolute)
        self.absolute += gradients.abs().sum(0)
        self.outer += gradients.T @ gradients
        self.per_token += products.abs().sum((0, 1)).to(self.per_token)
        self.per_batch += gradients.sum(0).abs()
        self.tokens += int(valid.sum())


@dataclass
class Collected:
    """What one pass over the calibration texts leaves behind.

    Attributes:
        examples: how many texts were seen.
        gates: gradient sums by site (empty if nothing was differentiated).
        slopes: sum over tokens of the outer product of the loss gradient at the projection's output, by site.
        fit: moments of the contexts of seven texts in eight, by site.
        held: moments of the others, by site.
        weighted: whether a token counts with the squared norm of the loss gradient at the output.
    """

    examples: int = 0
    gates: dict[str, GateSums] = field(default_factory=dict)
    slopes: dict[str, Float[Tensor, "out out"]] = field(default_factory=dict)
    fit: dict[str, Moments] = field(default_factory=dict)
    held: dict[str, Moments] = field(default_factory=dict)
    weighted: bool = False


def collect(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Iterable[Batch],
    task: Any = None,
    *,
    moments: bool = True,
    label: str = "Reading contexts",
) -> Collected:
    """Everything that scores and repair want to know, from one pass; the model is given back as it was.

    Args:
        model: dense or cut.
        sites: the sites to watch.
        batches: calibration texts.
        task: its `losses(model, batch)` gives a differentiable loss per example; None for a forward pass
            alone (unweighted moments, no gradients).
        moments: whether moments of contexts (and of output gradients) are wanted.
        label: what the progress bar says.

    Raises:
        BadInput: a site whose contexts cannot be seen, no texts, or a loss that is not finite, not
            differentiable or has no gradient at all.
    """
    unseen = [name for name, site in sites.items() if never_called(model, site)]
    if unseen:
        raise BadInput(
            f"sites {', '.join(unseen)}: the output projection is read without being called, so contexts and "
            "their gradients cannot be seen; use score magnitude, ablation or random, and no compensation"
        )
    found = Collected(weighted=task is not None)
    with frozen(model), torch.set_grad_enabled(task is not None):
        for batch in track(batches, label=label):
            _pass(model, sites, batch, task, found, moments)
    if not found.examples:
        raise BadInput("calibration: there are no texts; give at least one")
    if task is not None and not any(bool(sums.absolute.any()) for sums in found.gates.values()):
        raise BadInput(
            "the task's loss has no gradient at any head (a divergence from the model's own predictions has "
            "none at the dense model); use a task with labels, or score magnitude, ablation or redundancy"
        )
    return found


def _pass(
    model: nn.Module,
    sites: Mapping[str, Site],
    batch: Batch,
    task: Any,
    found: Collected,
    moments: bool,
) -> None:
    """One batch forward and, with a task, backward."""
    held = torch.tensor([int(text.id[:8], 16) % HELD_OUT == 0 for text in batch.texts])
    leaves: list[Tensor] = []
    running: dict[str, list[tuple[Site, Tensor]]] = {site.output: [] for site in sites.values()}

    def entered(site: Site, context: Tensor) -> Tensor | None:
        valid = valid_queries(batch, site, context)
        if task is None:
            _count(found, site, context, valid, held, None)
            return None
        if not context.requires_grad:
            # Nothing before the first site has a gradient when weights are frozen: its context is a leaf.
            context = context.detach().requires_grad_()
            leaves.append(context)
        context.register_hook(lambda slope: _count_gates(found, site, context.detach(), slope, valid))
        running[site.output].append((site, context))
        return context

    def left(path: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            # Of a shared module perhaps only some calls are watched.
            if moments and running[path]:
                site, context = running[path].pop()
                valid = valid_queries(batch, site, context)
                output.register_hook(lambda slope: _count(found, site, context.detach(), valid, held, slope))

        return hook

    with contextlib.ExitStack() as stack:
        stack.enter_context(at_projections(model, sites, entered))
        for path in running if task is not None else ():
            stack.enter_context(_removed(model.get_submodule(path).register_forward_hook(left(path))))
        if task is None:
            model(**batch.inputs)
        else:
            _backward(task.losses(model, batch), leaves, batch)
    found.examples += len(batch.texts)


def _backward(losses: Tensor, leaves: list[Tensor], batch: Batch) -> None:
    if losses.shape != (len(batch.texts),):
        raise BadInput(
            f"the task's losses: got shape {tuple(losses.shape)}, expected one per text [{len(batch.texts)}]"
        )
    if not losses.requires_grad:
        raise BadInput("the task's losses do not depend on the attention heads differentiably; use another score")
    if not bool(torch.isfinite(losses).all()):
        worst = batch.texts[int((~torch.isfinite(losses)).nonzero()[0])]
        raise BadInput(f"the task's loss is not finite for the text {worst.text!r:.80}; leave it out or use float32")
    # Examples do not influence one another, so the gradient of the sum holds every example's own gradient.
    torch.autograd.grad(losses.sum(), leaves, allow_unused=True)


def _count_gates(found: Collected, site: Site, context: Tensor, slope: Tensor, valid: Tensor) -> None:
    products = _wide(context) * _wide(slope)
    heads = products.reshape(*valid.shape, -1, site.head_dim).sum(-1)
    if site.name not in found.gates:
        zeros = Moments.zeros(heads.shape[-1], heads.device)
        found.gates[site.name] = GateSums(zeros.first, zeros.second, zeros.first.clone(), zeros.first.clone())
    found.gates[site.name].add(heads, valid)


def _count(found: Collected, site: Site, context: Tensor, valid: Tensor, held: Tensor, slope: Tensor | None) -> None:
    """Add a batch's contexts to the moments, weighted by the squared gradient norm if there is one."""
    context = _wide(context).reshape(*valid.shape, -1)
    for sums, rows in ((found.fit, ~held), (found.held, held)):
        if site.name not in sums:
            sums[site.name] = Moments.zeros(context.shape[-1], context.device)
        chosen = valid & rows.to(valid.device).unsqueeze(-1)
        weights = None if slope is None else _wide(slope).reshape(*valid.shape, -1)[chosen].square().sum(-1)
        sums[site.name].add(context[chosen], weights)
    if slope is not None:
        slopes = _wide(slope).reshape(*valid.shape, -1)[valid]
        if site.name not in found.slopes:
            found.slopes[site.name] = Moments.zeros(slopes.shape[-1], slopes.device).second
        found.slopes[site.name] += (slopes.T @ slopes).to(found.slopes[site.name])


def valid_queries(batch: Batch, site: Site, context: Tensor) -> Bool[Tensor, "batch query"]:
    """Which rows of a site's context are real tokens.

    Streams without tokens (image patches) and lengths that the tokens do not have (pooling) have no padding.
    """
    rows = len(batch.texts)
    tokens = batch.tokens.get("decoder" if site.stack == "decoder" else "") or batch.tokens.get("")
    queries = context.numel() // context.shape[-1] // rows
    if tokens is not None and tokens.valid.shape == (rows, queries):
        return tokens.valid.to(context.device)
    return torch.ones(rows, queries, dtype=torch.bool, device=context.device)


def _wide(tensor: Tensor) -> Tensor:
    """At least float32: half precision overflows in squares and loses small terms in sums."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextlib.contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without weight gradients; both flags are given back module by module.

    >>> layer = nn.Linear(1, 1)
    >>> with frozen(layer):
    ...     layer.training, layer.weight.requires_grad
    (False, False)
    >>> layer.training, layer.weight.requires_grad
    (True, True)
    """
    training = {module: module.training for module in model.modules()}
    grads = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.eval()
    try:
        for parameter in grads:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, flag in grads.items():
            parameter.requires_grad_(flag)
        for module, flag in training.items():
            module.training = flag
