"""Correction: after the repair, bring the model's outputs back to the dense model's, in closed form."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigh, solve_triangular
from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.gates import at_projections, gated
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.apply import columns_of
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.finite import require_finite
from headwise.prune.importance.gradients import collect, real_tokens, valid_rows
from headwise.prune.importance.outputs import Outputs
from headwise.prune.importance.repair_cost import factored, ridged
from headwise.prune.selection.blocks import Block

#: Directions of a block's output that a correction may use: those to which the model's outputs react most.
DIRECTIONS = 16
#: Texts that show which those are.
SAMPLE = 64


def correct(
    calibration: Calibration,
    lost: Mapping[Block, Sequence[int]],
    wanted: Mapping[str, float],
    ridge: float,
    with_bias: bool = True,
    anew: bool = False,
) -> dict[str, float]:
    """Change the kept columns of the projections that lost heads so that the outputs come closest to `wanted`.

    Least squares repairs each block by itself; what is left adds up through the model. To first order a change D of
    a projection moves an output z of a text by sum_t J_t . (D c_t + d), with c the contexts and J the gradient of z
    at the block's output. Ridge regression of what the outputs lack, one random direction z a text, on these products
    of all blocks gives all changes at once: a Gauss-Newton step (the linear model of the neural tangent kernel,
    Jacot et al., 2018). Contexts are whitened, and of J only the directions count that carry most of it, whitened,
    too: no change is cheap for being invisible. The strength of the ridge is the one with the least error on texts
    that are left out one by one (in closed form); if none is better than no change, nothing changes.

    One forward-backward pass; memory grows by directions times kept columns per text and block.

    Args:
        calibration: the model, repaired, not yet cut.
        lost: heads that go, by block; other blocks do not change.
        wanted: what the dense model put out (`Calibration.outputs`).
        ridge: of the contexts' second moment, in units of its mean diagonal.
        with_bias: whether biases change where there are any.
        anew: whether contexts are no longer those of the dense model, and have to be looked at again.

    Returns:
        `before` and `expected`: root mean square of what the outputs lack, and the same on texts that are left out.
    """
    gates = {site.name: list(heads) for block, heads in lost.items() for site in block.sites}
    found = None if anew else calibration.contexts()
    with still(calibration.model), gated(calibration.model, gates):
        found = found or collect(calibration.model, calibration.sites, calibration.batches, label="Moments of contexts")
        shapes = _shapes(calibration, found, lost, ridge, with_bias)
        features: dict[str, list[Tensor]] = {name: [] for name in shapes}
        lacks: list[float] = []
        for batch in track(calibration.batches, label="Correcting outputs"):
            reactions = _Reactions(calibration, tuple(lost), batch)
            values = reactions.run()
            lacks += [wanted[text.id] - value for text, value in zip(batch.texts, values.tolist(), strict=True)]
            for name, shape in shapes.items():
                features[name].append(shape.features(reactions.seen[name]).float())
    # One block after the other, so that no second copy of all features is made.
    columns = {name: torch.cat(features.pop(name)) for name in list(features)}
    kernel = reduce(add, [(rows @ rows.T).cpu().double() for rows in columns.values()])
    amounts, report = ridge_by_left_out(kernel.numpy(), np.array(lacks))
    for block in lost:
        rows, shape = columns[block.name], shapes[block.name]
        _write(calibration.model, block.sites[0], shape, torch.from_numpy(amounts).to(rows) @ rows)
    return report


def ridge_by_left_out(
    kernel: Float[np.ndarray, "text text"], lacks: Float[np.ndarray, " text"]
) -> tuple[Float[np.ndarray, " text"], dict[str, float]]:
    """Weights of the texts' features in a ridge regression whose strength errs least on texts left out one by one.

    With K = V diag(e) V^T the fit is H y, H = K (K + s)^-1, and the error on a text that is left out is
    (y - H y)_i / (1 - H_ii): no fit is made twice (Golub, Heath & Wahba, 1979).

    Returns:
        weights [text], zero if no strength is better than no fit; and the errors `before` and `expected`.

    >>> weights, errors = ridge_by_left_out(np.ones((4, 4)), np.full(4, 2.0))
    >>> errors["before"], bool(errors["expected"] < 1e-2), bool(abs(weights.sum() - 2) < 1e-2)
    (2.0, True, True)
    """
    values, vectors = np.linalg.eigh(kernel)
    values, turned = np.maximum(values, 0.0), vectors.T @ lacks
    best, strength = float(np.mean(lacks**2)), np.inf
    before = best
    for part in np.geomspace(1e-6, 100, 33):
        tried = max(part * float(values.mean()), np.finfo(float).tiny)
        kept = values / (values + tried)
        left = (lacks - vectors @ (kept * turned)) / np.maximum(1 - np.square(vectors) @ kept, 1e-12)
        error = float(np.mean(left**2))
        if error < best:
            best, strength = error, tried
    weights = vectors @ (turned / (values + strength)) if np.isfinite(strength) else np.zeros(len(lacks))
    return weights, {"before": before**0.5, "expected": best**0.5}


@dataclass
class _Shape:
    """How a block may change: the kept columns, whitened, by a few directions of its output.

    Attributes:
        kept: columns of the heads that stay.
        mean: of their contexts, zero where there is no bias.
        root: lower Cholesky factor of their second moment.
        directions: [out, direction].
        with_bias: whether there is a bias to change.
    """

    kept: Tensor
    mean: Float[Tensor, " column"]
    root: Float[np.ndarray, "column column"]
    directions: Float[Tensor, "out direction"]
    with_bias: bool

    def features(self, calls: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, "batch feature"]:
        """How each text's output reacts to changes, from contexts and gradients of all calls of the block."""
        total = None
        whiten = torch.from_numpy(solve_triangular(self.root, np.eye(len(self.root)), lower=True))
        for contexts, slopes in calls:
            chosen = contexts[..., self.kept] - self.mean.to(contexts)
            white = chosen @ whiten.to(chosen).T
            if self.with_bias:
                white = torch.cat([white, white.new_ones(*white.shape[:-1], 1)], -1)
            # Padded tokens have no gradient, so they add nothing.
            found = (slopes @ self.directions.to(slopes)).mT @ white
            total = found if total is None else total + found
        return total.flatten(1)  # type: ignore[union-attr]

    def change(self, features: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """What a combination of features adds to the kept columns and to the bias."""
        inner = features.double().cpu().numpy().reshape(self.directions.shape[1], -1)
        directions = self.directions.double().cpu().numpy()
        columns = len(self.root)
        weight = directions @ solve_triangular(self.root, inner[:, :columns].T, lower=True, trans="T").T
        bias = directions @ inner[:, columns] if self.with_bias else np.zeros(len(directions))
        return weight, bias - weight @ self.mean.double().cpu().numpy()


def _shapes(
    calibration: Calibration, found: Any, lost: Mapping[Block, Sequence[int]], ridge: float, biased: bool
) -> dict[str, _Shape]:
    slopes = slopes_of(calibration, tuple(lost))
    shapes = {}
    for block, heads in lost.items():
        site = block.sites[0]
        moments = reduce(add, [found.fit[call.name] + found.held[call.name] for call in block.sites])
        kept = columns_of(site, [head for head in site.kept if head not in heads])
        with_bias = biased and output_bias(calibration.model, site) is not None
        second = moments.matrix(centred=with_bias)[np.ix_(kept, kept)]
        root = np.tril(factored(second, ridge, lower=True)[0]) if len(kept) else np.zeros((0, 0))
        mean = torch.from_numpy(moments.mean()[kept] if with_bias else np.zeros(len(kept)))
        device = output_weight(calibration.model, site).device
        directions = torch.from_numpy(_directions(slopes[block.name]))
        shapes[block.name] = _Shape(torch.from_numpy(kept).to(device), mean, root, directions, with_bias)
    return shapes


def _directions(second: np.ndarray) -> np.ndarray:
    """The directions that carry most of the gradient, each of unit second moment, [out, direction]."""
    size = len(second)
    shaped, first = ridged(second, 0.1), max(size - DIRECTIONS, 0)
    try:
        values, vectors = eigh(shaped, subset_by_index=[first, size - 1])
    except np.linalg.LinAlgError:
        # Where many are equal, as of one or two texts, a few cannot always be found alone; all can.
        values, vectors = (found[..., first:] for found in np.linalg.eigh(shaped))
    return np.asarray(vectors / np.sqrt(values))


def slopes_of(calibration: Calibration, blocks: tuple[Block, ...]) -> dict[str, np.ndarray]:
    """Second moment of the gradient at the blocks' outputs, from the first texts."""
    sums: dict[str, Any] = dict.fromkeys((block.name for block in blocks), 0.0)
    seen = 0
    for batch in calibration.batches:
        reactions = _Reactions(calibration, blocks, batch)
        reactions.run()
        # Exactly the first texts, so that batches do not matter.
        for name, calls in reactions.seen.items():
            for _, slopes in calls:
                rows = slopes[: SAMPLE - seen].flatten(0, 1).double()
                sums[name] = sums[name] + (rows.T @ rows).cpu().numpy()
        seen += len(batch.texts)
        if seen >= SAMPLE:
            break
    return {name: np.asarray(total) / min(seen, SAMPLE) for name, total in sums.items()}


class _Reactions:
    """One batch forward and backward: contexts, and gradients of each text's output at the blocks' outputs.

    Attributes:
        seen: by block, of every call, contexts and gradients, [batch, query, column or out].
    """

    def __init__(self, calibration: Calibration, blocks: tuple[Block, ...], batch: Batch) -> None:
        self.calibration, self.blocks, self.batch = calibration, blocks, batch
        self.block_of = {site.name: block.name for block in blocks for site in block.sites}
        self.seen: dict[str, list[tuple[Tensor, Tensor]]] = {block.name: [] for block in blocks}
        self.leaves: list[Tensor] = []
        self.running: dict[str, list[tuple[Site, Tensor, Tensor]]] = {}

    def run(self) -> Float[Tensor, " batch"]:
        """Do it; the outputs along the texts' directions.

        Raises:
            BadInput: outputs, contexts or gradients that are not finite.
        """
        model = self.calibration.model
        sites = {site.name: site for block in self.blocks for site in block.sites}
        with contextlib.ExitStack() as stack, torch.enable_grad():
            stack.enter_context(at_projections(model, sites, self._enter))
            paths = {site.output for site in sites.values()}
            stack.enter_context(
                hooked(model.get_submodule(path).register_forward_hook(self._leave(path)) for path in paths)
            )
            values = Outputs(self.calibration.seed).losses(model, self.batch)
            require_finite(values, "what the model puts out", self.batch)
            torch.autograd.grad(values.sum(), self.leaves, allow_unused=True)
        return values.detach()

    def _enter(self, site: Site, context: Tensor) -> Tensor:
        if not context.requires_grad:
            # Nothing before the first of these sites has a gradient when weights are frozen: a leaf.
            context = context.detach().requires_grad_()
            self.leaves.append(context)
        valid = valid_rows(site, context, self.batch)
        self.running.setdefault(site.output, []).append((site, context.detach(), valid))
        return context

    def _leave(self, path: str) -> Any:
        return lambda module, args, output: self._left(path, output)

    def _left(self, path: str, output: Tensor) -> None:
        if not self.running.get(path):
            return
        site, context, valid = self.running[path].pop()
        output.register_hook(lambda slope: self._keep(site, context, slope, valid))

    def _keep(self, site: Site, context: Tensor, slope: Tensor, valid: Tensor) -> None:
        seen, slopes = real_tokens(context, valid), real_tokens(slope, valid)
        for numbers, what in ((seen, "contexts"), (slopes, "the output's gradient")):
            require_finite(numbers.square().sum(1), f"site {site.name}: {what}", self.batch)
        self.seen[self.block_of[site.name]].append((seen, slopes))


def _write(model: Any, site: Site, shape: _Shape, features: Tensor) -> None:
    change, moved = shape.change(features)
    weight, bias = output_weight(model, site), output_bias(model, site)
    with torch.no_grad():
        weight[:, shape.kept] += torch.from_numpy(change).to(weight)
        if bias is not None:
            bias += torch.from_numpy(moved).to(bias)
