"""Values: heads that stay read from the tokens they attend to what the heads that go had to say."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.capture import capture
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.sites import Site
from headwise.analysis.sites.anatomy import dissect
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.correction import slopes_of
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.gradients import held_out
from headwise.prune.importance.repair_cost import ridged
from headwise.prune.selection.blocks import Block

log = logging.getLogger("headwise")

#: Rounds of alternating least squares; later ones bring next to nothing.
ROUNDS = 4
#: The most columns whose products are summed for one block: twelve heads' contexts and what those that stay read.
WIDEST = 4096
#: How far contexts may be from maps times values, squared and relative, for values to be what explains them.
EXPLAINED = 1e-4


def value_linears(model: nn.Module, sites: Mapping[str, Site]) -> dict[str, nn.Linear]:
    """The linear module that makes a site's values, a row per head and feature, where there is one of its own.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16))
    >>> value_linears(model, find_sites(model))
    {'0': Linear(in_features=16, out_features=16, bias=True)}
    """
    names = {anatomy.module: anatomy.value for anatomy in dissect(model, counted=False) if not anatomy.bare}
    found = {}
    for name, site in sites.items():
        value = names.get(site.module, "")
        module = model.get_submodule(f"{site.module}.{value}") if value else None
        own = site.calls == 1 and site.kv_heads == site.heads
        if own and type(module) is nn.Linear and module.out_features == len(site.kept) * site.head_dim:
            found[name] = module
    return found


@dataclass
class _Read:
    """What one block's heads read, over all texts: sums of products of u = [contexts, readings, 1].

    A reading is what a head that stays attends to, A_h x, before its values choose from it. Of products, those of
    later columns with earlier ones stay zero until `second`.

    Attributes:
        site: where.
        value: makes its values.
        places: of the heads that stay, among those that exist.
        weight: the dense output projection, [out, column].
        bias: its bias.
        felt: root of what the outputs feel of the block's output, [out, out].
        sums: by whether texts are held out of the fit.
    """

    site: Site
    value: nn.Linear
    places: list[int]
    weight: Float[Tensor, "out column"]
    bias: Float[Tensor, " out"]
    felt: Float[Tensor, "out out"]
    sums: dict[bool, Tensor] = field(default_factory=dict)

    def add(self, seen: Seen, entered: Tensor, held: Tensor) -> None:
        maps = seen.map[:, self.places]
        readings = torch.einsum("bhqk,bkf->bqhf", maps, entered.to(maps))
        whole = torch.cat([seen.context.flatten(2), readings.flatten(2), maps.new_ones(*readings.shape[:2], 1)], -1)
        for apart in (False, True):
            rows = whole[seen.queries & (held == apart).to(seen.queries.device).unsqueeze(-1)]
            sums = self.sums.setdefault(apart, rows.new_zeros(rows.shape[1], rows.shape[1]))
            step = self.value.in_features
            for start in range(0, len(sums), step):
                sums[start : start + step, start:].addmm_(rows[:, start : start + step].T, rows[:, start:])

    def projection(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Weight and bias of the output projection as they are by now; one without a bias is not read."""
        return output_weight(model, self.site), cast(Tensor, output_bias(model, self.site))

    def second(self, apart: bool) -> Float[Tensor, "column column"]:
        """Mean products per token; zeros if no text was there."""
        upper = self.sums[apart].double().triu()
        return (upper + upper.triu(1).T) / upper[-1, -1].clamp(min=1.0)


class _Reader:
    """A reducer that sums what blocks read; `watching` notes what enters their values."""

    needs = frozenset({"maps", "contexts"})
    whole = True

    def __init__(self, reads: Sequence[_Read]) -> None:
        self.reads = reads
        self.entered: dict[str, Tensor] = {}

    def watching(self) -> AbstractContextManager[None]:
        return hooked(read.value.register_forward_pre_hook(self._noting(read.site.name)) for read in self.reads)

    def _noting(self, name: str) -> Any:
        def note(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self.entered[name] = args[0]

        return note

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        held = held_out(batch.texts)
        for read in self.reads:
            read.add(seen[read.site.name], self.entered[read.site.name], held)

    def result(self) -> dict[str, Any]:
        return {}


def read_values(calibration: Calibration, lost: Mapping[Block, Sequence[int]]) -> list[_Read]:
    """What the blocks' heads that stay read, by one pass of the model as it is, before any repair.

    Left out are blocks whose values are no matrix of their own, are shared between heads or calls, whose output
    projection has no bias, that keep no head, or whose products would be too many.
    """
    linears = value_linears(calibration.model, calibration.sites)
    reads: list[_Read] = []
    slopes: dict[str, np.ndarray] = {}
    for block, heads in lost.items():
        site = block.sites[0]
        bias = output_bias(calibration.model, site)
        places = [place for place, head in enumerate(site.kept) if head not in heads]
        if site.name not in linears or bias is None or not places:
            continue
        value = linears[site.name]
        if len(site.kept) * site.head_dim + len(places) * value.in_features < WIDEST:
            if not slopes:
                with still(calibration.model):
                    slopes = slopes_of(calibration, tuple(lost))
            weight = output_weight(calibration.model, site)
            felt = _root(slopes[block.name]).to(weight.device)
            reads.append(_Read(site, value, places, weight.double().clone(), bias.double().clone(), felt))
    if not reads:
        return []
    reader = _Reader(reads)
    try:
        with reader.watching():
            capture(calibration.model, calibration.batches, [reader], sites={r.site.name: r.site for r in reads})
    except BadInput as error:
        log.warning("values stay as they are: %s", error)
        return []
    whole = [read for read in reads if all(bool(sums.isfinite().all()) for sums in read.sums.values())]
    if len(whole) < len(reads):
        broken = sorted({read.site.name for read in reads} - {read.site.name for read in whole})
        log.warning("values stay as they are at site %s: what its heads read is not finite", ", ".join(broken))
    return whole


def _root(slopes: np.ndarray) -> Tensor:
    """Square root of the slopes' second moment; directions that the texts do not show count, too."""
    values, vectors = np.linalg.eigh(ridged(slopes, 1.0))
    return torch.from_numpy((vectors * np.sqrt(values / values.mean())) @ vectors.T)


def refit_values(model: nn.Module, reads: Sequence[_Read], ridge: float) -> dict[str, dict[str, float]]:
    """Let the heads that stay read other things, and their projection say them, so that blocks give what they gave.

    A head's part of the output is O_h V_h (A_h x), of rank head_dim whatever its width. With the maps A as they are,
    all O_h and V_h are fitted to the dense block's output by alternating least squares: a head at a time is given
    the best matrix of that rank for what the others leave (reduced-rank regression, Izenman, 1975), drawn towards
    where it was. Where held-out texts are not served better, all stays.

    Args:
        model: whose projections are repaired already.
        reads: of the dense model.
        ridge: in units of the readings' mean second moment.

    Returns:
        By site the relative error of the block's output on held-out texts, before and after.
    """
    found = {}
    for read in reads:
        fit, held = read.second(False), read.second(True)
        held = held if float(held[-1, -1]) else fit
        fit = fit if float(fit[-1, -1]) else held
        fitted = _Fitted.of(model, read)
        if fitted.unexplained(fit) > EXPLAINED:
            continue
        columns, dense = read.weight.shape[1], read.felt @ read.weight
        size = float(((dense @ held[:columns, :columns]) * dense).sum())
        before = fitted.error(held)
        fitted.alternate(fit, ridge)
        after = fitted.error(held)
        if size > 0 and after < before:
            fitted.write(model)
            found[read.site.name] = {"error_before": (before / size) ** 0.5, "error_after": (after / size) ** 0.5}
    return found


@dataclass
class _Fitted:
    """Outputs and values of the heads that stay, as they are being fitted; float64.

    Attributes:
        read: what they read.
        out: O_h, [out, head_dim] each.
        value: V_h, [head_dim, in] each.
        shift: bias of the values, [head, head_dim].
        bias: of the output projection.
    """

    read: _Read
    out: list[Tensor]
    value: list[Tensor]
    shift: Tensor
    bias: Tensor

    @classmethod
    def of(cls, model: nn.Module, read: _Read) -> _Fitted:
        width = read.site.head_dim
        weight, bias = (tensor.double() for tensor in read.projection(model))
        rows = [slice(place * width, (place + 1) * width) for place in read.places]
        matrix, offset = read.value.weight.detach().double(), read.value.bias
        shift = matrix.new_zeros(len(matrix)) if offset is None else offset.detach().double()
        return cls(
            read, [weight[:, row].clone() for row in rows], [matrix[row].clone() for row in rows],
            torch.stack([shift[row] for row in rows]), bias.clone(),
        )  # fmt: skip

    def _parts(self) -> Float[Tensor, "out reading"]:
        return torch.cat([out @ value for out, value in zip(self.out, self.value, strict=True)], 1)

    def _constant(self) -> Tensor:
        return reduce(add, [out @ shift for out, shift in zip(self.out, self.shift, strict=True)], self.bias)

    def error(self, second: Tensor) -> float:
        """Mean squared distance from the dense block's output, as the model's outputs feel it."""
        lacks = self.read.felt @ torch.cat(
            [self.read.weight, -self._parts(), (self.read.bias - self._constant())[:, None]], 1
        )
        return float(((lacks @ second) * lacks).sum())

    def unexplained(self, second: Tensor) -> float:
        """How far contexts are from values of what was read, as a share of their squares."""
        width, step, worst = self.read.site.head_dim, self.read.value.in_features, 0.0
        every = torch.arange(len(second), device=second.device)
        columns, readings = every[: self.read.weight.shape[1]], every[self.read.weight.shape[1] :]
        for index, place in enumerate(self.read.places):
            # All that a head's contexts and readings have to do with: the products of other heads are many more.
            own = [columns[place * width :][:width], readings[index * step :][:step], every[-1:]]
            square = second[torch.cat(own)][:, torch.cat(own)]
            size = float(square[:width, :width].diagonal().sum())
            lacks = torch.cat([torch.eye(width).to(square), -self.value[index], -self.shift[index][:, None]], 1)
            worst = max(worst, float(((lacks @ square) * lacks).sum()) / size if size > 0 else 0.0)
        return worst

    def alternate(self, second: Tensor, ridge: float) -> None:
        """A head after the other, some rounds; then the bias takes the means."""
        columns, step, width = self.read.weight.shape[1], self.read.value.in_features, self.read.site.head_dim
        mean = second[-1, :-1]
        centred = second[:-1, :-1] - torch.outer(mean, mean)
        own = centred[columns:, columns:]
        rows = [slice(start, start + step) for start in range(0, len(own), step)]
        scale, shapes, factors = _factored([own[row, row] for row in rows], ridge)
        parts = [out @ value for out, value in zip(self.out, self.value, strict=True)]
        start = [part.clone() for part in parts]
        missing = self.read.weight @ centred[:columns, columns:] - self._parts() @ own
        unfelt = torch.linalg.inv(self.read.felt)
        for _ in range(ROUNDS):
            for index, row in enumerate(rows):
                pull = missing[:, row] - scale * (parts[index] - start[index])
                best = parts[index] + torch.cholesky_solve(pull.T, factors[index]).T
                seen = self.read.felt @ best
                directions = torch.linalg.eigh(seen @ shapes[index] @ seen.T).eigenvectors[:, -width:]
                values, out = directions.T @ seen, unfelt @ directions
                # Part by part: what moves has twice the rank of a head, which is less than its width.
                moved = torch.cat([values, self.value[index]]) @ own[row]
                missing = torch.addmm(missing, torch.cat([out, -self.out[index]], 1), moved, alpha=-1)
                # As large as it was: half precision has to hold it.
                size = self.value[index].norm() / values.norm().clamp(min=1e-30)
                self.out[index], self.value[index] = out / size, values * size
                parts[index] = out @ values
        given = self.read.bias + self.read.weight @ mean[:columns]
        self.bias = self.bias + given - self._parts() @ mean[columns:] - self._constant()

    def write(self, model: nn.Module) -> None:
        """Put the heads' new parts into the model."""
        weight, bias = self.read.projection(model)
        width = self.read.site.head_dim
        with torch.no_grad():
            for place, out, value in zip(self.read.places, self.out, self.value, strict=True):
                weight[:, place * width : (place + 1) * width] = out.to(weight)
                self.read.value.weight[place * width : (place + 1) * width] = value.to(self.read.value.weight)
            bias.copy_(self.bias.to(bias))


def _factored(squares: Sequence[Tensor], ridge: float) -> tuple[float, list[Tensor], list[Tensor]]:
    """Second moments with a ridge, in units of their mean diagonal, and their factors.

    The ridge is as much larger as it takes where what was read does not fill its width: sums of float32 products are
    then not positive in every direction.

    >>> scale, shapes, factors = _factored([torch.ones(2, 2), 3 * torch.eye(2)], 0.5)
    >>> scale, shapes[0].tolist(), len(factors)
    (1.0, [[2.0, 1.0], [1.0, 2.0]], 2)
    """
    size = sum(float(square.diagonal().sum()) for square in squares) / sum(len(square) for square in squares)
    scale = max(ridge, 1e-9) * size if size > 0 else 1.0
    while True:
        shapes = [square + scale * torch.eye(len(square)).to(square) for square in squares]
        factors, wrong = zip(*(torch.linalg.cholesky_ex(shape) for shape in shapes), strict=True)
        if not any(bool(info) for info in wrong):
            return scale, shapes, list(factors)
        scale *= 10.0
