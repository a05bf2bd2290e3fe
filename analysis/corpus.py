"""Texts and data sets to batches: the one door to what stands in the files beside this one."""

from headwise.analysis.batching import Batch, Batches, Tokens, batches, token_limit
from headwise.analysis.embedded_text import embedded_corpus
from headwise.analysis.encoding import word_spans
from headwise.analysis.reading import read_dataset, read_source, read_table, read_texts
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
    "embedded_corpus",
    "read_dataset",
    "read_source",
    "read_table",
    "read_texts",
    "token_limit",
    "word_spans",
]
