"""Maps of long texts: recomputed tile by tile from queries and keys, never all rows of all heads at once.

The model runs on the fused kernel, through an attention function and a mask function of our own that remember
what each attention call was asked: queries, keys, mask, bias, scale. A tile is a run of query rows of every
site; its memory is sites × heads × rows × keys, whatever the length of the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.capture.hooks import Hooks, by_head
from headwise.analysis.capture.kernels import on_kernel
from headwise.analysis.capture.maps import rows_that_count
from headwise.analysis.capture.seen import Seen, Visibility, streams_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.portions import BYTES
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site

#: What the kernel is called in a model's config while it is looked at.
KERNEL = "headwise_tiles"
#: Numbers alive per entry of a tile: scores, probabilities, and the work space of two reducers.
COPIES = 4
#: Query rows of a tile, at most; where no budget is set, so many.
MOST_ROWS = 256


@dataclass(frozen=True, eq=False)
class Asked:
    """What one attention call was asked, enough to say its map again.

    Attributes:
        query: `[batch, head, query, width]`, positions applied.
        key: `[batch, kv head, key, width]`.
        mask: boolean (True = allowed) or added to the scores; None for none.
        bias: added to the scores (T5), or None.
        scaling: factor of the scores.
        causal: whether keys after the query are forbidden, beside the mask.
        softcap: scores are squeezed to ±softcap by tanh (Gemma 2), or None.
        sinks: a logit per head that takes mass and is no key (GPT-OSS), or None.
    """

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv key width"]
    mask: Tensor | None = None
    bias: Tensor | None = None
    scaling: float | None = None
    causal: bool = False
    softcap: float | None = None
    sinks: Tensor | None = None

    def probabilities(self, rows: slice) -> Float[Tensor, "batch head row key"]:
        """The map's rows, in float32; a row without any allowed key is 0.

        >>> call = Asked(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), causal=True)
        >>> call.probabilities(slice(0, 2))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
        """
        query, key = self.query[:, :, rows].float(), self.key.float()
        batch, heads, length, width = query.shape
        keys = key.shape[2]
        # Query heads of one group stand together: their rows are one long run for the key head they share.
        scores = query.reshape(batch, key.shape[1], -1, width) @ key.mT
        scores = scores.view(batch, heads, length, keys)
        scores *= width**-0.5 if self.scaling is None else self.scaling
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        for added in (self.bias, self.mask):
            if added is not None:
                part = (added if added.shape[-2] == 1 else added[..., rows, :])[..., :keys]
                if part.dtype == torch.bool:
                    scores.masked_fill_(~part, -torch.inf)
                else:
                    scores += part
        if self.causal:
            first = rows.start or 0
            scores.masked_fill_(scores.new_ones(length, keys, dtype=torch.bool).triu(1 + first), -torch.inf)
        # A row of padding far from any key may have none in its window: it gets 0, not NaN.
        most = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        sink = None if self.sinks is None else self.sinks.float().view(1, -1, 1, 1)
        if sink is not None:
            most = torch.maximum(most, sink)
        total = scores.sub_(most).exp_().sum(-1, keepdim=True)
        if sink is not None:
            total += (sink - most).exp()
        return scores.div_(total.clamp(min=torch.finfo(torch.float32).tiny))

    def attend(self, value: Float[Tensor, "batch kv key width"], step: int) -> Float[Tensor, "batch query head width"]:
        """What the attention hands on, where no fused kernel can: a few rows at a time."""
        heads, length = self.query.shape[1], self.query.shape[2]
        shared = value.float().repeat_interleave(heads // value.shape[1], dim=1)
        parts = [self.probabilities(slice(s, min(s + step, length))) @ shared for s in range(0, length, step)]
        return torch.cat(parts, dim=2).to(value.dtype).transpose(1, 2)


_CALLS: ContextVar[dict[nn.Module, list[Asked]] | None] = ContextVar("headwise_calls", default=None)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function: the fused kernel's answer, and a note of what was asked."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    call = Asked(
        query,
        key,
        mask=attention_mask,
        bias=kwargs.get("position_bias"),
        scaling=kwargs.get("scaling"),
        causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    calls = _CALLS.get()
    if calls is not None:
        calls.setdefault(module, []).append(call)
    if call.softcap is None and call.sinks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return call.attend(value, MOST_ROWS), None


def _register() -> None:
    """Both functions under one name: a kernel without a mask function gets no mask, and no warning."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(KERNEL, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(KERNEL, sdpa_mask)


class Tiles(Hooks):
    """Like `Hooks`, but every `look` yields the maps in tiles; the model runs on the fused kernel meanwhile.

    Args:
        model: the model.
        sites: the sites to look at.
        needs: of the reducers.
        memory: bytes that one tile of all sites, and what is computed from it, may take.
    """

    def __init__(self, model: nn.Module, sites: Mapping[str, Site], needs: frozenset[str], memory: int) -> None:
        super().__init__(model, sites, needs - {"maps"})
        self.memory = memory
        self.calls: dict[nn.Module, list[Asked]] = {}
        self._causal: dict[str, bool] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Tiles:
        _register()
        try:
            self._open.enter_context(on_kernel(self.model, KERNEL))
            token = _CALLS.set(self.calls)
            self._open.callback(_CALLS.reset, token)
            super().__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        super().__exit__(*error)

    def forget(self) -> None:
        """Drop what the last forward pass left."""
        super().forget()
        self.calls.clear()

    def look(self, batch: Batch) -> Iterator[dict[str, Seen]]:
        """What the last forward pass showed, one tile of all sites after the other."""
        asked = {name: self._asked(site) for name, site in self.sites.items()}
        self.excluded = {}
        length = max(call.query.shape[2] for call in asked.values())
        step = self._rows(asked)
        for start in range(0, length, step):
            rows = slice(start, start + step)
            visible = Visibility(batch, rows, self._causal)
            tile = {
                name: self._tile(self.sites[name], call, batch, visible, rows)
                for name, call in asked.items()
                if start < call.query.shape[2]
            }
            tile, excluded = rows_that_count(tile, self.sinks)
            for name, count in excluded.items():
                self.excluded[name] = self.excluded.get(name, 0) + count
            yield tile
        self.forget()

    def _rows(self, asked: Mapping[str, Asked]) -> int:
        per_row = sum(call.query.shape[0] * call.query.shape[1] * call.key.shape[2] for call in asked.values())
        return max(1, min(MOST_ROWS, self.memory // (per_row * BYTES * COPIES)))

    def _asked(self, site: Site) -> Asked:
        module = self.model.get_submodule(site.module)
        calls = next((self.calls[part] for part in module.modules() if part in self.calls), [])
        if len(calls) != max(site.calls, 1):
            raise BadInput(
                f"site {site.name}: {site.module} made {len(calls)} attention calls through the interface of "
                f"transformers, expected {max(site.calls, 1)}; its maps cannot be recomputed in tiles. Use the "
                "eager door (door='eager'), or shorter texts (max_length=)."
            )
        return calls[site.call]

    def _tile(self, site: Site, call: Asked, batch: Batch, visible: Visibility, rows: slice) -> Seen:
        present, real = max(1, len(site.kept)), len(site.kept)
        if call.query.shape[1] != present:
            raise BadInput(
                f"site {site.name}: {site.module} attends with {call.query.shape[1]} heads, expected {present}; "
                "its maps cannot be recomputed in tiles. Use the eager door (door='eager')."
            )
        maps = call.probabilities(rows)[:, :real].to(self.home)
        contexts = None
        if "contexts" in self.needs:
            contexts = by_head(site, self.caught(self.inputs, site, site.output), present)[:, rows, :real].to(self.home)
        module = self.model.get_submodule(site.module)
        queries, allowed = visible(site, module, maps, maps.shape[2], maps.shape[3])
        streams = streams_of(site, batch.tokens)
        how = self.laid_out(site, batch, streams, maps.shape[3])
        return Seen(site, maps, contexts, queries, allowed, *streams, start=rows.start, **how)
