"""Annotated texts: who is linked to whom, from whatever form they come in, and the set that ships.

A reader takes a path and returns `Annotated` texts; adding a form is its file, one line below, its test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headwise.analysis.annotations.annotated import Annotated, Mention, Span, corpus_of
from headwise.analysis.annotations.antecedents import Choice, choices, nearest_is_right
from headwise.analysis.annotations.conll2012 import read_conll2012
from headwise.analysis.annotations.conllu import read_dependencies
from headwise.analysis.annotations.coreference_set import coreference_set
from headwise.analysis.annotations.entities import read_entities, read_treebank
from headwise.analysis.annotations.gap import read_gap
from headwise.analysis.annotations.jsonl import read_jsonl, write_jsonl
from headwise.analysis.annotations.windows import windows
from headwise.analysis.annotations.winobias import read_winobias
from headwise.analysis.annotations.words import covering, word_indexes, word_map, word_units
from headwise.analysis.errors import BadInput

#: Kind of file to its reader.
READERS: dict[str, Callable[[str | Path], list[Annotated]]] = {
    "jsonl": read_jsonl,
    "treebank": read_treebank,
    "dependencies": read_dependencies,
    "entities": read_entities,
    "conll2012": read_conll2012,
    "gap": read_gap,
    "winobias": read_winobias,
}

#: Ending of a file's name to the kind it is read as when none is said.
ENDINGS = {
    ".jsonl": "jsonl",
    ".conllu": "treebank",
    ".conll": "conll2012",
    "_conll": "conll2012",
    ".tsv": "gap",
    ".txt.dev": "winobias",
    ".txt.test": "winobias",
}

__all__ = [
    "ENDINGS",
    "READERS",
    "Annotated",
    "Choice",
    "Mention",
    "Span",
    "choices",
    "coreference_set",
    "corpus_of",
    "covering",
    "nearest_is_right",
    "read_annotations",
    "read_jsonl",
    "windows",
    "word_indexes",
    "word_map",
    "word_units",
    "write_jsonl",
]


def read_annotations(path: str | Path, kind: str | None = None) -> list[Annotated]:
    """The annotated texts of a file, read by its kind or by the ending of its name.

    Args:
        path: the file, or its kind, a colon and the file.
        kind: a key of `READERS`; None: by the ending.

    Raises:
        BadInput: the kind or the ending is unknown, or the reader finds mistakes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.jsonl")
    >>> _ = file.write_text('{"text": "Ann said she ran.", "links": [[[9, 12], [0, 3]]]}')
    >>> len(read_annotations(file))
    1
    """
    said, _, rest = str(path).partition(":")
    if kind is None and rest and said in READERS and not Path(path).exists():
        kind, path = said, rest
    if kind is None:
        kind = next((kind for ending, kind in ENDINGS.items() if str(path).endswith(ending)), None)
        if kind is None:
            raise BadInput(
                f"{path}: cannot tell its kind from its name; "
                f"expected an ending of {', '.join(ENDINGS)}, or its kind before it, such as gap:{path} "
                f"({', '.join(READERS)})"
            )
    if kind not in READERS:
        raise BadInput(f"{path}: got kind {kind!r}, expected {', '.join(READERS)}")
    return READERS[kind](path)
