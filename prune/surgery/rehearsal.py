"""The rehearsal: attention of a class that headwise has not proven is cut on a copy of one module first.

The families of the matrix in `tests/` are proven. For any other class structure alone speaks, and it can be wrong:
an unknown order of fused rows, a map whose width is that of the heads by chance. So one module is copied, the copies
are put into the model, cut, run on synthetic inputs, compared with the gated model, and taken out again. Where no
such inputs run the whole model, or none that do come by, a part of it is run, at last the block alone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.analysis.errors import BadInput, CannotCut
from headwise.analysis.gates import gated, never_called
from headwise.analysis.gates.block_inputs import block_inputs, block_path
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.selftest import proven
from headwise.analysis.gates.still import still
from headwise.analysis.gates.synthetic import synthetic_inputs
from headwise.analysis.sites import Site
from headwise.analysis.sites.anatomy import dissect
from headwise.analysis.sites.paths import root_path
from headwise.prune.surgery.edits import Edit
from headwise.prune.surgery.replay import replay

# A wrong slice shows as a difference of order 1; rounding stays below these, by the weights' precision.
LIMITS = {torch.float64: 1e-5, torch.float32: 1e-4}
LIMIT_OF_HALVES = 5e-2


class _Enough(Exception):
    """The site's output has been seen; the rest of the pass is of no interest."""


def unproven(model: nn.Module, sites: Mapping[str, Site], names: Sequence[str]) -> list[str]:
    """One site of each kind of attention, among those named, that no family of the matrix covers."""
    first: dict[tuple[str, ...], str] = {}
    for name in names:
        module = model.get_submodule(sites[name].module)
        if not proven(module):
            first.setdefault((type(module).__name__, *sorted(child for child, _ in module.named_parameters())), name)
    return list(first.values())


def rehearse(
    model: nn.Module, sites: Mapping[str, Site], remove: Mapping[str, Sequence[int]],
    edits_of: Callable[[str], list[Edit]], *, inputs: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Nothing, if cutting a copy of one module of each unproven kind equals gating it.

    Args:
        model: the model that will be cut; in the end it is what it was, bit for bit.
        sites: its sites.
        remove: site name to the heads that go.
        edits_of: the edits that cut one site alone.
        inputs: real inputs to try it with, before synthetic ones.

    Raises:
        CannotCut: if the cut copy stops with an error or gives other numbers, or nothing comes by the site.
    """
    scenes = _Scenes(model, sites, inputs)
    for name in unproven(model, sites, list(remove)):
        if any(parameter.is_meta for parameter in model.parameters()):
            return  # nothing can be run, and nothing is computed with it
        kind = type(model.get_submodule(sites[name].module)).__name__
        reason = _try(model, sites[name], list(remove[name]), edits_of(name), scenes.of(name))
        if reason is None:
            raise CannotCut(
                f"site {name}: {kind} is not among the families that headwise knows, and its cut cannot be tried out here: "
                "neither the model nor this block runs with inputs made up for it. In Python, pass real ones (`cut(model, plan, "
                "inputs=...)`); gating works without."
            )
        if reason:
            raise CannotCut(
                f"site {name}: {kind} is not among the families that headwise knows, and a copy of it, cut for a try, {reason}. "
                "Nothing was changed. Gating works (headwise.analysis.gated); leave these sites out of the plan."
            )


@dataclass
class _Scenes:
    """What can be run to see a site at work: the model, else the smallest part around the site that runs at all."""

    model: nn.Module
    sites: Mapping[str, Site]
    inputs: Mapping[str, Any] | None
    found: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def of(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Paths of modules with inputs that they run with, from the whole model down to the block alone."""
        if self.inputs is not None:
            yield "", dict(self.inputs)
        site = self.sites[name]
        steps = site.module.split(".")
        for path in (".".join(steps[:depth]) for depth in range(len(steps))):
            if isinstance(self.model.get_submodule(path), PreTrainedModel):
                if path not in self.found:
                    self.found[path] = self._made_up(path)
                inputs = self.found[path]
                if inputs is not None:
                    yield path, inputs
        anatomy = next(a for a in dissect(self.model, counted=False) if a.module == site.module)
        with still(self.model):
            inputs = block_inputs(self.model, site, anatomy)
        if inputs is not None:
            yield block_path(site), inputs

    def _made_up(self, path: str) -> dict[str, Any] | None:
        with still(self.model):
            try:
                return synthetic_inputs(self.model.get_submodule(path))
            except BadInput:
                return None


def _try(
    model: nn.Module, site: Site, heads: list[int], edits: list[Edit], scenes: Iterator[tuple[str, dict[str, Any]]]
) -> str | None:  # fmt: skip
    """What went wrong on the copy, or ``; None where nothing that runs comes by the site."""
    for path, inputs in scenes:
        with still(model):
            dense = _output(model, site, path, inputs)
            if dense is None:
                continue
            with gated(model, {site.name: heads}):
                want = _output(model, site, path, inputs)
            try:
                with _copies(model, edits):
                    replay(model, edits)
                    # To the end: what this site hands on must suit the blocks behind it.
                    got = _output(model, site, path, inputs, stop=False)
            except Exception as error:
                return f"stops with {type(error).__name__}: {' '.join(str(error).split())[:140]}"
        return _apart(model, want, got)
    return None


def _apart(model: nn.Module, want: Tensor | None, got: Tensor | None) -> str:
    """How a site's output differs from the gated one's, or ``."""
    if want is None or got is None or want.shape != got.shape:
        return "gives an output of another shape"
    limit = LIMITS.get(next(model.parameters()).dtype, LIMIT_OF_HALVES)
    want, got = want.double(), got.double()
    apart = ((want - got).abs().max() / want.abs().max().clamp(min=1e-12)).item()
    return f"differs from the gated one by {apart:.1e} of its output" if not apart <= limit else ""


def _output(
    model: nn.Module, site: Site, path: str, inputs: dict[str, Any], *, stop: bool = True
) -> Tensor | None:  # fmt: skip
    """The site's first output, in a pass of one part that ends there if it may; None if the pass never comes by."""
    seen: list[Tensor] = []
    # nn.MultiheadAttention calls its projection only once it is cut: watch the whole module then.
    module = model.get_submodule(site.module)
    whole = never_called(model, site) or isinstance(module, nn.MultiheadAttention)

    def look(_: nn.Module, args: Any, output: Any) -> None:
        seen.append((output if isinstance(output, Tensor) else output[0]).detach().clone())
        if stop:
            raise _Enough

    watch = model.get_submodule(site.module if whole else site.output).register_forward_hook(look)
    torch.manual_seed(0)  # some forwards draw (masked patches); every pass must draw the same
    with hooked([watch]), contextlib.suppress(_Enough):
        model.get_submodule(path)(**copy.deepcopy(inputs))
    return seen[0] if seen else None


@contextlib.contextmanager
def _copies(model: nn.Module, edits: Sequence[Edit]) -> Iterator[None]:
    """The modules that the edits touch are replaced by copies for as long as the block lasts."""
    touched = {path for edit in edits if (path := _there(model, edit["module"])) is not None}
    outer = [path for path in touched if not any(path.startswith(other + ".") for other in touched)]
    originals = {path: model.get_submodule(path) for path in outer}
    for path, twin in copy.deepcopy(originals).items():
        model.set_submodule(path, twin)
    try:
        yield
    finally:
        for path, original in originals.items():
            model.set_submodule(path, original)


def _there(model: nn.Module, path: str) -> str | None:
    """A record's path from the root; a submodule that the edits themselves bring has none yet."""
    try:
        return root_path(model, path)
    except ValueError:
        return None
