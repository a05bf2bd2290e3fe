"""Coreference in a CoNLL-U treebank: the `Entity=` marks of GUM and CorefUD."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.annotations.conllu import Sentence, Word, read_dependencies, read_sentences
from headwise.analysis.annotations.mistakes import read_lines
from headwise.analysis.errors import BadInput

#: `(e1-person-…` opens, `e1)` closes, `(e1-person-…)` does both; `e1[1/2]` is a piece of a broken mention.
_MARK = re.compile(r"\([^()]+\)?|[^()]+\)")
_HAS_ENTITY = re.compile(r"[\t|]Entity=[^\t]*$")
_KINDS = {"PRON": "pronoun", "DET": "pronoun", "PROPN": "proper"}


def read_entities(path: str | Path) -> list[Annotated]:
    r"""A text for every document (`# newdoc`): sentences joined by blanks, mentions linked to the one before.

    A mention's head is the word whose own head stands outside of it, its kind that word's part of speech.
    Discontinuous mentions are left out and counted in `skipped`, and so are marks that never close.

    Raises:
        BadInput: as `read_sentences`, or the file has no `Entity=` at all.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.conllu")
    >>> row = "{}\t{}\t_\t{}\t_\t_\t{}\tdep\t_\tEntity=(1-person)\n"
    >>> _ = file.write_text(row.format(1, "Ann", "PROPN", 2) + row.format(2, "she", "PRON", 0))
    >>> read_entities(file)[0].links
    (((4, 7), (0, 3)),)
    """
    sentences = read_sentences(path)
    if not any("Entity" in word.misc for sentence in sentences for word in sentence.words):
        raise BadInput(f"{path}: no Entity= in the last column; only GUM and CorefUD treebanks have coreference")
    found: list[_Document] = []
    for sentence in sentences:
        if not found or any(key.startswith("newdoc") for key in sentence.comments):
            found.append(_Document())
        found[-1].add(sentence)
    return [document.annotated() for document in found]


def read_treebank(path: str | Path) -> list[Annotated]:
    r"""Everything that a treebank says: its dependencies, then, where it has any, its coreference.

    Raises:
        BadInput: as `read_sentences`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.conllu")
    >>> row = "{}\t{}\t_\t{}\t_\t_\t{}\tdep\t_\tEntity=(1-person)\n"
    >>> _ = file.write_text(row.format(1, "Ann", "PROPN", 2) + row.format(2, "she", "PRON", 0))
    >>> [text.relation for text in read_treebank(file)]
    ['dependency', 'coreference']
    """
    marked = any(_HAS_ENTITY.search(line) for line in read_lines(path))
    return read_dependencies(path) + (read_entities(path) if marked else [])


@dataclass
class _Document:
    """One document while its sentences are read."""

    text: str = ""
    open: list[tuple[str, list[Word], int]] = field(default_factory=list)
    mentions: list[tuple[str, Mention]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, sentence: Sentence) -> None:
        """Take in a sentence: its text, and the mentions that its words open and close."""
        offset = len(self.text) + bool(self.text)
        self.text += (" " if self.text else "") + sentence.text
        for word in sentence.words:
            marks = _MARK.findall(str(word.misc.get("Entity") or ""))
            for mark in marks:
                if mark.startswith("("):
                    self.open.append((_name(mark), [], offset))
            for _, words, _ in self.open:
                words.append(word)
            for mark in marks:
                if mark.endswith(")"):
                    self._finish(_name(mark))
        # A mention does not run over the end of a sentence: what is still open has lost its end.
        self.skipped["not closed"] += len(self.open)
        self.open.clear()

    def _finish(self, name: str) -> None:
        for i in reversed(range(len(self.open))):
            if self.open[i][0] == name:
                _, words, offset = self.open.pop(i)
                if "[" in name:
                    self.skipped["discontinuous"] += 1
                    return
                head = _head(words)
                span = _shifted((words[0].span[0], words[-1].span[1]), offset)
                kind = _KINDS.get(head.tag, "nominal")
                self.mentions.append((name, Mention(span, _shifted(head.span, offset), kind)))
                return
        self.skipped["not opened"] += 1

    def annotated(self) -> Annotated:
        """The document with links between neighbours in an entity."""
        last: dict[str, Span] = {}
        links = []
        distinct = {mention.span: (name, mention) for name, mention in reversed(self.mentions)}
        for span in sorted(distinct):
            name = distinct[span][0]
            if name in last:
                links.append((span, last[name]))
            last[name] = span
        mentions = tuple(distinct[span][1] for span in sorted(distinct))
        self.skipped["one span marked twice"] = len(self.mentions) - len(distinct)
        skipped = {reason: count for reason, count in self.skipped.items() if count}
        return Annotated(self.text, tuple(links), mentions=mentions, skipped=skipped)


def _name(mark: str) -> str:
    return mark.strip("()").split("-")[0]


def _head(words: list[Word]) -> Word:
    inside = {word.number for word in words}
    return next((word for word in words if word.head not in inside), words[-1])


def _shifted(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by
