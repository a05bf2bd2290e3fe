"""The proof: at every site, the cut model does what the gated dense model does."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.analysis.capture.kernels import eager_kernel, kernel_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.portions import shortened
from headwise.analysis.errors import BadInput, ProofFailed
from headwise.analysis.gates import gated, never_called
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.sites import Site, find_sites
from headwise.prune.proof.precision import AT_ONCE, at

LIMIT = 1e-5
# One unit in the last place of bfloat16 is 4e-3; four of them are rounding, not structure.
LIMIT_BFLOAT16 = 1.6e-2

Inputs = Mapping[str, Any]
Heads = Mapping[str, Sequence[int]]
#: Holds a model in some precision for a while.
Within = Callable[[nn.Module], contextlib.AbstractContextManager[None]]

#: Bytes that inputs and outputs of all sites may take together, of both models.
MOST_SEEN = 2 * 2**30


def prove(dense: nn.Module, cut: nn.Module, remove: Heads, batches: Iterable[Inputs]) -> dict[str, Any]:
    """How far gated and cut differ, site by site, with the inputs that each site gets in the gated pass.

    End to end, rounding alone makes two kernels of one deep model differ by 1e-4 to 1e-2; site by site with
    equal inputs a wrong slice shows as a difference of order 1 and a right one as 1e-7.

    Args:
        dense: the dense model (compensation already in its weights).
        cut: the model after `surgery.cut`.
        remove: site name to the removed heads.
        batches: model inputs, as keyword arguments; a few real batches.

    Returns:
        JSON-able: `limit`, `sites` (the largest difference relative to the largest output, in float32),
        `worst`, `bfloat16` (the worst in that precision, and its limit), `end_to_end` (`difference` of the
        outputs, and `floor`, what the gated dense model differs by between two kernels, if it has two),
        and `passed`.

    Raises:
        BadInput: a site of the dense model gives no numbers.
    """
    listed = list(batches)
    try:
        found = _proved(dense, cut, remove, listed, AT_ONCE)
    except RuntimeError:
        # Weights of some layer are read where it does not run; whatever else it is comes again below.
        found = {"passed": False}
    return found if found["passed"] else _proved(dense, cut, remove, listed, math.inf)


def lightened(batch: Batch, sites: Iterable[Site]) -> Batch:
    """A batch of no more tokens than what every site gets and gives of them fits `MOST_SEEN`; at least one text.

    Args:
        batch: the first texts of those that prove.
        sites: of the dense model.
    """
    a_token = 12 * sum(site.heads * site.head_dim for site in sites)
    length = max((1, batch.width, *(tokens.valid.shape[1] for tokens in batch.tokens.values())))
    fitting = max(16, MOST_SEEN // max(1, a_token))
    if len(batch.texts) * length <= fitting:
        return batch
    return shortened(batch, min(length, fitting), max(1, fitting // length))


def _proved(
    dense: nn.Module, cut: nn.Module, remove: Heads, listed: Sequence[Inputs], at_once: float | int
) -> dict[str, Any]:
    sites = find_sites(dense)
    half = partial(at, torch.bfloat16, at_once=at_once)
    full = partial(at, torch.float32, at_once=at_once)
    worst = _worst(dense, cut, remove, sites, listed, full)
    end, floor = _end_to_end(dense, cut, remove, listed[0], full)
    bfloat16 = max(_worst(dense, cut, remove, sites, listed[:1], half).values(), default=0.0)
    return {
        "schema": 1, "limit": LIMIT, "sites": worst, "worst": max(worst.values(), default=0.0),
        "bfloat16": {"worst": bfloat16, "limit": LIMIT_BFLOAT16}, "end_to_end": {"difference": end, **floor},
        "batches": len(listed), "passed": max(worst.values(), default=0.0) <= LIMIT,
    }  # fmt: skip


def require(proof: Mapping[str, Any]) -> None:
    """Stop here unless the proof holds.

    Raises:
        ProofFailed: naming the worst site.

    >>> require({"passed": True})
    """
    if not proof["passed"]:
        name = max(proof["sites"], key=lambda site: proof["sites"][site])
        raise ProofFailed(
            f"site {name}: the cut model differs from the gated one by {proof['worst']:.1e} of the site's output "
            f"(limit {proof['limit']:.0e}). Nothing was saved. This is a fault of headwise: the layout of this family's "
            "projections is not what headwise.analysis.sites.families says; please report it with the model's type."
        )


def _worst(
    dense: nn.Module, cut: nn.Module, remove: Heads, sites: Mapping[str, Site], batches: Sequence[Inputs],
    within: Within,
) -> dict[str, float]:  # fmt: skip
    worst: dict[str, float] = {}
    for inputs in batches:
        # One model after the other: two in another precision would be more than both as they are.
        with within(dense):
            seen, outputs = _gated_pass(dense, remove, sites, inputs)
        with within(cut):
            given = _fed_pass(cut, inputs, seen)
        for name, output in given.items():
            _require_numbers(name, outputs[name])
            worst[name] = max(worst.get(name, 0.0), _difference(outputs[name], output))
    # A stack that these inputs do not reach proves nothing: if it lost heads, the proof fails.
    return worst | {name: float("inf") for name in remove if name not in worst}


def _require_numbers(name: str, want: Tensor) -> None:
    """Return if a site gives any number: of two outputs without one it could only be said that they are alike.

    Raises:
        BadInput: with what to do.
    """
    if want.numel() and not bool(want.isfinite().any()):
        raise BadInput(
            f"site {name}: the model as it is gives nothing but NaN or infinity there, so that no cut of it can be proven; "
            "its weights are damaged: fetch them again, or save them anew from a training step that was sound"
        )


def _difference(want: Tensor, got: Tensor) -> float:
    if want.shape != got.shape:
        return float("inf")
    want, got = want.float(), got.float()
    same = torch.isfinite(want) == torch.isfinite(got)
    scale = want.nan_to_num(0, 0, 0).abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    apart = ((want - got).nan_to_num(0, 0, 0).abs().amax() / scale).item()
    return apart if bool(same.all()) else float("inf")


def _gated_pass(
    dense: nn.Module, remove: Heads, sites: Mapping[str, Site], inputs: Inputs
) -> tuple[dict[str, list[Tensor]], dict[str, Tensor]]:
    """Each site's floating inputs and its output, in one pass of the gated dense model."""
    seen: dict[str, list[Tensor]] = {}
    outputs: dict[str, Tensor] = {}

    def remember(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[site.name] = [value.clone() for value in _floats(args, kwargs)]

    with gated(dense, remove), hooked(_outputs(dense, sites, outputs)), hooked(_at_inputs(dense, sites, remember)):
        _run(dense, inputs)
    return seen, outputs


def _fed_pass(cut: nn.Module, inputs: Inputs, seen: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    """Each site's output in the cut model, fed with the recorded inputs (of equal shape) instead of its own."""

    def feed(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorded = iter(seen.get(site.name, ()))

        def swap(value: Any) -> Any:
            if not _floating(value):
                return value
            other = next(recorded, None)
            return other if other is not None and other.shape == value.shape else value

        return tuple(swap(value) for value in args), {name: swap(value) for name, value in kwargs.items()}

    now, outputs = find_sites(cut), dict[str, Tensor]()
    with hooked(_outputs(cut, now, outputs)), hooked(_at_inputs(cut, now, feed)):
        _run(cut, inputs)
    return outputs


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _floats(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in (*args, *kwargs.values()) if _floating(value)]


def _at_inputs(model: nn.Module, sites: Mapping[str, Site], visit: Callable[..., Any]) -> Iterator[RemovableHandle]:
    """Visit the inputs of every site's module, before any hook of the cut itself, call by call."""
    counts: dict[str, int] = {}
    for path in {site.module for site in sites.values()}:
        calls = {site.call: site for site in sites.values() if site.module == path}

        def hook(module: nn.Module, args: Any, kwargs: Any, path: str = path, calls: dict[int, Site] = calls) -> Any:
            call = counts.get(path, 0) % len(calls)
            counts[path] = counts.get(path, 0) + 1
            return visit(calls[call], args, kwargs)

        yield model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


def _outputs(model: nn.Module, sites: Mapping[str, Site], found: dict[str, Tensor]) -> Iterator[RemovableHandle]:
    """Find each site's output by name: of its output projection, or of its module where that is never called."""
    counts: dict[str, int] = {}
    for site in sites.values():
        if site.call:
            continue
        twins = {twin.call: twin.name for twin in sites.values() if twin.module == site.module}
        # nn.MultiheadAttention never calls its projection while dense, and does once cut: compare the whole module.
        whole = never_called(model, site) or isinstance(model.get_submodule(site.module), nn.MultiheadAttention)
        path = site.module if whole else site.output

        def hook(module: nn.Module, args: Any, output: Any, path: str = path, twins: dict[int, str] = twins) -> None:
            call = counts.get(path, 0) % len(twins)
            counts[path] = counts.get(path, 0) + 1
            found[twins[call]] = (output if isinstance(output, Tensor) else output[0]).detach()

        yield model.get_submodule(path).register_forward_hook(hook)


def _run(model: nn.Module, inputs: Inputs) -> Any:
    dtype = next(model.parameters()).dtype
    cast = {name: value.to(dtype) if _floating(value) else value for name, value in inputs.items()}
    with still(model), torch.no_grad():
        return model(**cast)


def _end_to_end(
    dense: nn.Module, cut: nn.Module, remove: Heads, inputs: Inputs, within: Within
) -> tuple[float, dict[str, float | str | None]]:
    """The outputs' largest difference, and what two kernels of the same gated model differ by; padding left out."""
    with within(dense), gated(dense, remove):
        mine = _told(_run(dense, inputs), inputs)
        here = kernel_of(getattr(dense, "config", None))
        floor: dict[str, float | str | None] = {"floor": None, "kernels": here}
        if here not in (None, "eager"):
            with contextlib.suppress(BadInput), eager_kernel(dense):  # some classes know one kernel only
                other = _told(_run(dense, inputs), inputs)
                floor = {"floor": (mine - other).abs().max().item(), "kernels": f"{here} against eager"}
    with within(cut):
        return (mine - _told(_run(cut, inputs), inputs)).abs().max().item(), floor


def _told(output: Any, inputs: Inputs) -> Tensor:
    """The main output where it speaks of a token: what stands at padding before a text is each kernel's own affair."""
    main = _first(output)
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = inputs.get(name)
        if isinstance(mask, Tensor) and main.ndim == 3 and mask.shape == main.shape[:2]:
            return main[mask.to(main.device).bool()]
    return main


def _first(output: Any) -> Tensor:
    """The model's main output: logits where there are some, else the first floating tensor."""
    for name in ("logits", "logits_per_text", "last_hidden_state"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value.float()
    values = output.values() if hasattr(output, "values") else output
    first: Tensor = next(value for value in values if _floating(value))
    return first.float()
