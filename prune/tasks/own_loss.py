"""The loss of a checkpoint's own task, which interventions on it are judged by."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.probes import OwnLoss, few_texts
from headwise.prune.tasks import choose_task

#: Tasks of language models, which have probes of words instead.
_OF_WORDS = ("causal-lm", "masked-lm")
#: Texts that the task is fitted on: a probe or a table of answers needs more than are asked about.
_FITTED_ON = 128


def own_loss(
    model: nn.Module, tokenizer: Any, corpus: Corpus, *, max_length: int | None = None, seed: int = 0
) -> OwnLoss | None:
    """Mean loss on a few of the texts of the task that fits the checkpoint; None where there are better probes, or none.

    A language model has probes of words, and one that reads no words has no role that is probed.

    Without labels the task is agreement: saying what the model says with all its heads.

    Args:
        model: the model with all its heads.
        tokenizer: of the checkpoint.
        corpus: the texts.
        max_length: the most tokens a text.
        seed: of the draw of texts.

    >>> callable(own_loss)
    True
    """
    if not hasattr(tokenizer, "all_special_ids"):
        return None
    task = choose_task(model, tokenizer, corpus)
    if task.kind in _OF_WORDS:
        return None
    few = few_texts(corpus, tokenizer, model, max_length, seed)
    asked = {text.id for batch in few for text in batch.texts}
    others = [text for text in corpus.sample(_FITTED_ON, seed).texts if text.id not in asked]
    known = Corpus([text for batch in few for text in batch.texts] + others, corpus.source)
    fitted = task.fit(model, tokenizer, known, max_length=max_length, seed=seed)

    def measure(model: nn.Module) -> float:
        with torch.no_grad():
            losses = [fitted.losses(model, batch).double() for batch in few]
        return float(torch.cat(losses).mean())

    return OwnLoss(task.kind, len(asked), measure)
