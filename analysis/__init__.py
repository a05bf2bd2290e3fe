"""Looks at attention heads; never changes a model.

The names below are imported when they are first used, so that `headwise --help` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.analysis.analyze import analyze
    from headwise.analysis.capture import capture
    from headwise.analysis.corpus import Corpus, Text, batches, embedded_corpus
    from headwise.analysis.evidence import Evidence
    from headwise.analysis.gates import contexts, gated
    from headwise.analysis.sites import Site, find_sites, heads_of

_HOME = {
    "Corpus": "corpus", "Evidence": "evidence", "Site": "sites", "Text": "corpus", "analyze": "analyze",
    "batches": "corpus", "capture": "capture", "contexts": "gates", "embedded_corpus": "corpus",
    "find_sites": "sites", "gated": "gates", "heads_of": "sites",
}  # fmt: skip
__all__ = [
    "Corpus", "Evidence", "Site", "Text", "analyze", "batches", "capture", "contexts", "embedded_corpus",
    "find_sites", "gated", "heads_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwise.analysis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
