"""What a checkpoint is judged on: one kind of task a file.

A task is fitted once, on the dense model and the calibration texts; what comes back judges the dense and
the cut model alike (`judge`), and gives the per-example losses (`losses`) that scores differentiate.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from headwise.analysis.texts import Corpus
from headwise.prune.tasks.agreement import Agreement
from headwise.prune.tasks.causal_lm import CausalLM, is_causal_lm
from headwise.prune.tasks.compare import compare
from headwise.prune.tasks.embedding_probe import EmbeddingProbe
from headwise.prune.tasks.embedding_retrieval import EmbeddingRetrieval
from headwise.prune.tasks.outcome import Fitted, Outcome
from headwise.prune.tasks.text_classification import TextClassification, is_classifier

Task = Agreement | CausalLM | EmbeddingProbe | EmbeddingRetrieval | TextClassification

TASKS: dict[str, type[Task]] = {
    "text-classification": TextClassification,
    "causal-lm": CausalLM,
    "embedding-probe": EmbeddingProbe,
    "embedding-retrieval": EmbeddingRetrieval,
    "agreement": Agreement,
}

__all__ = ["TASKS", "Fitted", "Outcome", "Task", "choose_task", "compare"]

#: A probe needs this many texts a class on average; with fewer the labels are names, not classes.
_TEXTS_A_CLASS = 5


def choose_task(model: nn.Module, tokenizer: Any, corpus: Corpus) -> Task:
    """The task that fits the checkpoint and the texts, where the recipe names none.

    A language model predicts tokens; a classifier with labelled texts classifies; a base model with labelled
    texts gets a probe, with pairs it retrieves; everything else is judged by agreement with the dense model.

    >>> choose_task(nn.Linear(2, 2), None, Corpus([])).kind
    'agreement'
    """
    if is_causal_lm(model):
        return CausalLM()
    labelled = bool(corpus.labels) and all(text.label is not None for text in corpus.texts)
    if is_classifier(model):
        config: Any = model.config
        return TextClassification() if labelled and config.num_labels > 1 else Agreement()
    if not _is_base(model):
        return Agreement()
    if labelled and 2 <= len(corpus.labels) <= len(corpus) // _TEXTS_A_CLASS:
        return EmbeddingProbe()
    if len(corpus) and all(text.pair is not None for text in corpus.texts):
        return EmbeddingRetrieval()
    return Agreement()


def _is_base(model: nn.Module) -> bool:
    """Whether the model ends in hidden states: `base_model` is then the model itself."""
    return getattr(model, "base_model", None) is model
