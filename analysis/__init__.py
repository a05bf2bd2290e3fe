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


class _Named(ModuleType):
    """A module that can be called as the function it is named after: `capture` is both.

    So `from headwise.analysis import capture` gives what a user calls, and `import headwise.analysis.capture as c`
    gives `c.Pass`, whichever was said first.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Door(ModuleType):
    """Hands out the names above."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_HOME[name]}")
        return home if _HOME[name] == name else getattr(home, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets a submodule here as soon as it has been loaded.
        if _HOME.get(name) == name and isinstance(value, ModuleType):
            value.__class__ = _Named
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return __all__


sys.modules[__name__].__class__ = _Door
