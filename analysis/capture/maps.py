"""Are these attention probabilities? Picking them from a module's output, and leaving broken rows out."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.capture.seen import Seen
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site

#: What the rows of a map may sum to: a softmax in half precision is off by up to 2 %.
_LEAST, _MOST = 0.98, 1.02


def probabilities(
    site: Site, output: Any, batch: int, heads: int, element: int | None = None
) -> tuple[Float[Tensor, "batch head query key"], int]:
    """The maps in an attention module's output, in float32, and which element of the output they were.

    Some modules return a position bias of the same shape before the weights, so shape alone does not tell.

    Args:
        site: for the messages.
        output: what the module returned.
        batch: how many texts it was given.
        heads: how many heads it still has.
        element: where the maps were last time, to skip the search.

    Raises:
        BadInput: nothing in the output is a map.

    >>> import torch
    >>> site = Site("0", "attn", "attn.o", heads=1, kv_heads=1, head_dim=1)
    >>> bias, weights = torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)
    >>> probabilities(site, (None, bias, weights), batch=1, heads=1)[1]
    2
    """
    parts = output if isinstance(output, tuple | list) else tuple(getattr(output, "values", lambda: (output,))())
    if element is not None and element < len(parts) and _shaped(parts[element], batch, heads):
        return parts[element].float(), element
    for i, part in enumerate(parts):
        if _shaped(part, batch, heads) and _looks_probable(part):
            return part.float(), i
    squares = [len(part) for part in parts if isinstance(part, Tensor) and part.dim() == 4 and part.shape[1] == heads]
    windows = next((count // batch for count in squares if count > batch and count % batch == 0), 0)
    if windows:
        raise BadInput(
            f"site {site.name}: {site.module} attends within {windows} windows of each image, which lie elsewhere, and "
            "between stages are of another size, so that no two of its heads can be compared over an image. Its maps "
            "are not looked at; gates, cuts and scores that need no maps work."
        )
    lost = next((part for part in parts if _shaped(part, batch, heads) and not bool(part.isfinite().any())), None)
    if lost is not None:
        raise BadInput(
            f"site {site.name}: {site.module} attends with nothing but NaN: what comes into it, or its weights, are no "
            f"numbers ({lost.dtype}). Weights that are fine in another precision overflow in this one: load them with "
            "dtype float32 or bfloat16 (--dtype); else the checkpoint is damaged, fetch it again."
        )
    found = ", ".join(str(tuple(part.shape)) for part in parts if isinstance(part, Tensor)) or "no tensor"
    raise BadInput(
        f"site {site.name}: no attention map in the output of {site.module} (tensors: {found}; expected "
        f"[{batch}, {heads}, query, key] with rows that sum to 1). Load the model with "
        "attn_implementation='eager', or leave this site out with sites=."
    )


def check_dense(model: nn.Module, sites: Mapping[str, Site]) -> None:
    """Refuse sites that attend in sparse blocks: what they return are not the probabilities that they used.

    Such a model goes over to whole maps by itself when texts are short, in other modules than those that are watched.

    Raises:
        BadInput: a site is sparse; the message says how to load the model instead.

    >>> check_dense(nn.Linear(1, 1), {"0": Site("0", "", "", heads=1, kv_heads=1, head_dim=1)})
    """
    for site in sites.values():
        kinds = (type(part).__name__ for part in model.get_submodule(site.module).modules())
        kind = next((kind for kind in kinds if "BlockSparse" in kind), None)
        if kind is not None:
            raise BadInput(
                f"site {site.name}: {kind} attends in sparse blocks, some drawn at random, and has no whole maps to look "
                "at. The same weights attend to everything when the model is loaded with "
                'attention_type="original_full": pass it to from_pretrained, or write it into the checkpoint\'s '
                "config.json; shorten very long texts (max_length) to what memory allows."
            )


def _shaped(part: Any, batch: int, heads: int) -> bool:
    return isinstance(part, Tensor) and part.dim() == 4 and tuple(part.shape[:2]) == (batch, heads)


def _looks_probable(part: Tensor) -> bool:
    """Nothing negative, no row above 1, some row with mass; NaN rows are left for later."""
    part = part.detach()
    lowest = float(part.amin())
    if lowest != lowest:
        part = part.nan_to_num()
        lowest = float(part.amin())
    mass = part.float().sum(-1)
    return lowest >= 0 and bool((mass <= _MOST).all()) and bool((mass > 0).any())


def rows_that_count(seen: Mapping[str, Seen], sinks: Container[str] = ()) -> tuple[dict[str, Seen], dict[str, int]]:
    """The sites without their broken rows (NaN or no mass), and how many rows that cost, by site.

    A row that is broken in one head is left out for all heads of all sites over the same tokens: only so can
    heads be compared. What a kernel left in broken and padding rows is set to 0 where it is not finite.

    Args:
        seen: the sites.
        sinks: names of the sites whose rows may sum to less than 1.

    Raises:
        BadInput: rows that sum to something else than 1, in a site without attention sinks.

    >>> rows_that_count({})
    ({}, {})
    """
    broken: dict[Any, Tensor] = {}
    counts: dict[str, int] = {}
    unclean = False
    for name, one in seen.items():
        if one.maps is None:
            continue
        least = 1e-12 if name in sinks else _LEAST
        # Rows that sum to what they should are neither broken nor unclean: nothing more to ask of most sites.
        low, high = (float(value) for value in one.mass.aminmax()) if one.mass.numel() else (least, _MOST)
        if least <= low and high <= _MOST:
            continue
        finite = one.mass.isfinite().all(1)
        unclean |= not bool(finite.all())
        bad = one.queries & ~(finite & (one.mass > 0).all(1))
        if bool(bad.any()):
            counts[name] = int(bad.sum())
            place = _place(one)
            broken[place] = broken[place] | bad.cpu() if place in broken else bad.cpu()
        _check_sums(one, bad, least)
    if not broken and not unclean:
        return dict(seen), counts
    return {name: _without(one, broken.get(_place(one))) for name, one in seen.items()}, counts


def _place(one: Seen) -> tuple[str | None, tuple[int, ...]]:
    return one.query_stream, tuple(one.queries.shape)


def _check_sums(one: Seen, bad: Tensor, least: float) -> None:
    rows = one.mass.transpose(1, 2)[one.queries & ~bad]
    if rows.numel() == 0:
        return
    low, high = (float(value) for value in rows.aminmax())
    if high > _MOST or low < least:
        raise BadInput(
            f"site {one.site.name}: the rows of its maps sum to {low:.4g} to {high:.4g}, expected 1. What "
            f"{one.site.module} returns is not the attention probabilities that it used; leave the site out "
            "with sites=."
        )


def _without(one: Seen, broken: Tensor | None) -> Seen:
    queries = one.queries if broken is None else one.queries & ~broken.to(one.queries.device)
    return replace(
        one,
        maps=None if one.maps is None else one.maps.masked_fill(~queries[:, None, :, None], 0.0),
        contexts=None if one.contexts is None else one.contexts.masked_fill(~queries[:, :, None, None], 0.0),
        queries=queries,
        allowed=one.allowed & queries[..., None],
    )
