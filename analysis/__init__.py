"""Looks at attention heads; never changes a model.

The names below are imported when they are first used, so that `headwise --help` loads no torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
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


class _Door(ModuleType):
    """Hands out the names above, also where one of them is a submodule's name, too.

    Once `headwise.analysis.capture` has been imported, the import system sets the module as an attribute of
    this package; the function of that name is what a user asks this door for.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, getattr(value, name) if name in _HOME and isinstance(value, ModuleType) else value)

    def __dir__(self) -> list[str]:
        return __all__


sys.modules[__name__].__class__ = _Door
