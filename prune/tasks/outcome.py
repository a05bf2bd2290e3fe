"""What judging one model gives: a value, and what every single example contributed to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.gates.still import still

Rows = np.ndarray


@dataclass(frozen=True, eq=False)
class Outcome:
    """How one model did on a corpus, example by example, in the corpus's order.

    Attributes:
        kind: of the task.
        metric: its name, as reports print it.
        value: of the metric, over all examples.
        per_example: `[example]`, each example's own score (right or wrong, nats per token, …).
        higher_is_better: how to read `value` and `per_example`.
        texts: the examples that were judged.
        predictions: what the model said of each example.
        labels: what it should have said; None where the task has no labels.
        rows: `[example]` or `[example, 2]`, what the metric is computed from.
        measure: the metric of such rows; None for the mean of `per_example`.
        probabilities: `[example, class]`, where the model gives a distribution for each example.
        weights: `[example]`, how much an example counts (its tokens, say).
        skipped: examples that could not be judged, by reason.
        beside: further metrics over all examples, which nothing is decided by.
        own: whether the task brought the examples itself, instead of judging the corpus.
    """

    kind: str
    metric: str
    value: float
    per_example: np.ndarray
    higher_is_better: bool
    texts: Sequence[Text]
    predictions: Sequence[Any]
    labels: Sequence[Any] | None = None
    rows: Rows | None = None
    measure: Callable[[Rows], float] | None = None
    probabilities: np.ndarray | None = None
    weights: np.ndarray | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)
    own: bool = False

    def drawn_from(self, corpus: Corpus) -> int:
        """How many examples there were to judge, those that had to be skipped included."""
        return len(self.texts) if self.own else len(corpus)

    @property
    def ids(self) -> list[str]:
        """Content ids of the judged texts: two outcomes compare only if these agree."""
        return [text.id for text in self.texts]


class Fitted(Protocol):
    """A task made ready on the dense model: it judges the dense and the cut model by the same measure."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """`[batch]`, a loss per example, differentiable and independent of the other examples."""
        ...

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The outcome of a model on a corpus."""
        ...


@contextlib.contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """A model at rest without gradients inside the block, as it was after it.

    >>> layer = nn.Dropout()
    >>> with judging(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    with still(model), torch.inference_mode():
        yield
