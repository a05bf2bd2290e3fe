"""Texts and data sets to batches: the one door to `texts`, `batching`, `reading` and `embedded_text`."""

from headwise.analysis.batching import Batch, Batches, Tokens, batches, token_limit
from headwise.analysis.encoding import word_spans
from headwise.analysis.texts import Corpus, Label, Text, disjoint

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "Label",
    "Text",
    "Tokens",
    "batches",
    "disjoint",
    "token_limit",
    "word_spans",
]
