"""Texts and data sets to batches: the one door to what stands in the files beside this one."""

from headwise.analysis.corpus.batching import Batch, Batches, Tokens, batches, token_limit
from headwise.analysis.corpus.embedded_text import embedded_corpus
from headwise.analysis.corpus.encoding import word_spans
from headwise.analysis.corpus.reading import read_dataset, read_source, read_table, read_texts
from headwise.analysis.corpus.texts import Corpus, Label, Text, disjoint

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
