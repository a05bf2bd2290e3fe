"""Ways of looking: without special tokens and sinks, and text by text instead of pooled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from headwise.analysis.capture.maps import rows_that_count
from headwise.analysis.capture.seen import Reducer, Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.inference.cells import cells_of
from headwise.analysis.roles.relation import rows_of
from headwise.analysis.roles.sinks import is_first

#: Attention below this is none at all.
_NOTHING = 1e-30


class Focused(Reducer):
    """A measure that sees neither special tokens nor the first token: keys gone, rows scaled to sum to 1.

    Heads that only share a sink look alike under any measure of whole maps; what they do with the rest of
    their attention is compared here. Rows of special tokens, and rows with nothing left in some head, do not
    count.

    Args:
        inner: what is measured on the rest.

    >>> Focused(PerText(lambda: None)).needs
    frozenset()
    """

    totals = ("inner",)

    def __init__(self, inner: Reducer) -> None:
        self.inner, self.needs = inner, inner.needs

    def finish(self) -> None:
        """Let the inner measure take in what is open."""
        getattr(self.inner, "finish", lambda: None)()

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        rest = {name: ordinary(one, batch.tokens) for name, one in seen.items()}
        self.inner.update(batch, rows_that_count(rest)[0])

    def result(self) -> dict[str, np.ndarray]:
        """What the inner measure found."""
        return self.inner.result()


def ordinary(one: Seen, tokens: Mapping[str, Tokens]) -> Seen:
    """A site's maps over ordinary tokens alone; as they are where the keys are no tokens.

    >>> callable(ordinary)
    True
    """
    queries, allowed, maps = one.queries, one.allowed, one.maps
    if one.query_stream is not None:
        mine = tokens[one.query_stream]
        plain = (rows_of(mine, one).valid & ~rows_of(mine, one).special).to(queries.device)
        queries = queries & plain & ~rows_of(replace(mine, special=is_first(mine)), one).special.to(queries.device)
    if one.key_stream is not None:
        keys = tokens[one.key_stream]
        kept = (keys.valid & ~keys.special & ~is_first(keys)).to(allowed.device)
        allowed = allowed & kept[:, None]
        if maps is not None:
            maps = maps * kept[:, None, None].to(maps.dtype)
            mass = maps.sum(-1, keepdim=True)
            # A share that small is rounding, and would not scale to 1.
            maps = torch.where(mass > _NOTHING, maps / mass.clamp(min=_NOTHING), 0.0)
    queries = queries & allowed.any(-1)
    return replace(one, maps=maps, queries=queries, allowed=allowed & queries[..., None])


class PerText(Reducer):
    """A measure taken for every text on its own, then averaged over the texts that have it.

    Pooled over rows, a long text counts for more, and what differs between texts counts as similarity; text by
    text neither does.

    Args:
        make: a new measure, once for each text.
        blocks: parts of the texts, by content, whose sums are also kept apart, for resampling; 0 for none.

    >>> PerText(lambda: None).result()
    {}
    """

    totals = ("sums", "counts", "by_block")

    def __init__(self, make: Callable[[], Reducer], blocks: int = 0) -> None:
        self.make, self.blocks = make, blocks
        #: By array of likeness, `[block, 2, head, head]`: sums over texts, and how many texts have a number.
        self.by_block: dict[str, np.ndarray] = {}
        example = make()
        self.needs: frozenset[str] = getattr(example, "needs", frozenset())
        self._batch: Batch | None = None
        self._open: list[tuple[Batch, Reducer]] = []
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        if batch is not self._batch:
            self._close()
            self._batch = batch
            self._open = [(replace(batch, texts=[text], tokens={}), self.make()) for text in batch.texts]
        for i, (alone, measure) in enumerate(self._open):
            measure.update(alone, {name: _text(one, slice(i, i + 1)) for name, one in seen.items()})

    def finish(self) -> None:
        """Take in what is open of the last batch."""
        self._close()

    def _close(self) -> None:
        for batch, measure in self._open:
            cell = int(cells_of(batch.texts)[0])
            for name, array in measure.result().items():
                known = ~np.isnan(array)
                value = np.where(known, array, 0.0)
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + known
                if self.blocks and name.startswith("similarity/") and not name.endswith("_chance"):
                    if name not in self.by_block:
                        self.by_block[name] = np.zeros((self.blocks, 2, *array.shape))
                    self.by_block[name][cell % self.blocks] += np.stack([value, known])
        self._batch, self._open = None, []

    def parts(self) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Sums by part of the texts, and how likeness comes from their sum."""
        self._close()
        return next(iter(self.by_block.values())), _mean

    def result(self) -> dict[str, np.ndarray]:
        """The mean over texts of every array; NaN where no text has it."""
        self._close()
        return {
            name: np.asarray(np.where(self.counts[name] > 0, total / np.maximum(self.counts[name], 1), np.nan))
            for name, total in self.sums.items()
        }


def _mean(sums: np.ndarray) -> np.ndarray:
    """Sums over counts, `[2, head, head]`; NaN where nothing was counted."""
    return np.asarray(np.where(sums[1] > 0, sums[0] / np.maximum(sums[1], 1), np.nan))


def _text(one: Seen, only: slice) -> Seen:
    return replace(
        one,
        maps=None if one.maps is None else one.maps[only],
        contexts=None if one.contexts is None else one.contexts[only],
        queries=one.queries[only],
        allowed=one.allowed[only],
    )
