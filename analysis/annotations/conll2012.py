"""CoNLL-2012 coreference columns, as OntoNotes and LitBank (Bamman et al. 2020) have them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.annotations.mistakes import Mistakes, read_lines

_PART = re.compile(r"(\()?(\d+)(\))?")
_GOOD = "name  0  2  Harker  NNP  …  0)  (document, part, number, word, …, coreference last)"


def read_conll2012(path: str | Path) -> list[Annotated]:
    r"""A text for every document part: words joined by blanks, each mention linked to the one before.

    Mentions that stand alone in their cluster (LitBank marks them) are candidates without a link.

    Raises:
        BadInput: the file cannot be read, has no document, or a mention that is not opened or not closed.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.conll")
    >>> rows = ["#begin document (d); part 0", "d 0 0 Ann _ (1)", "d 0 1 ran _ _", "", "d 0 0 She _ (1)"]
    >>> _ = file.write_text("\n".join([*rows, "d 0 1 won _ -", "#end document"]))
    >>> read_conll2012(file)[0].links
    (((8, 11), (0, 3)),)
    """
    mistakes = Mistakes(path)
    found: list[_Document] = []
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#begin document"):
            found.append(_Document())
        elif line.startswith("#end document"):
            _close(found, number, mistakes)
        elif line.strip():
            cells = line.split()
            if len(cells) < 5:
                mistakes.add(number, f"got {len(cells)} columns, expected at least 5")
            elif not found:
                mistakes.add(number, "a word before any #begin document")
            else:
                for fault in found[-1].add(cells[3], cells[-1]):
                    mistakes.add(number, fault)
    _close(found, number, mistakes)
    if not found:
        mistakes.add(1, "no #begin document in it")
    mistakes.stop_if_any(_GOOD)
    return [document.annotated() for document in found]


def _close(found: list[_Document], number: int, mistakes: Mistakes) -> None:
    if found and found[-1].open:
        names = ", ".join(sorted({name for name, _ in found[-1].open}))
        mistakes.add(number, f"the document ends and these mentions are still open: {names}")
        found[-1].open.clear()


@dataclass
class _Document:
    """One document while its lines are read."""

    words: list[str] = field(default_factory=list)
    length: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)
    mentions: list[tuple[str, Span]] = field(default_factory=list)

    def add(self, word: str, column: str) -> list[str]:
        """Take in one word with its coreference column; what is wrong with that column."""
        start = self.length + bool(self.words)
        self.words.append(word)
        self.length = start + len(word)
        faults = []
        for part in column.split("|") if column not in ("-", "_") else []:
            match = _PART.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                faults.append(f"coreference: got {part!r}, expected (12, 12) or (12)")
                continue
            if match[1]:
                self.open.append((match[2], start))
            if match[3] and not self._finish(match[2]):
                faults.append(f"coreference: {part} closes a mention that is not open")
        return faults

    def _finish(self, name: str) -> bool:
        # Mentions of one cluster can nest in each other: the one opened last is closed first.
        for i in reversed(range(len(self.open))):
            if self.open[i][0] == name:
                self.mentions.append((name, (self.open.pop(i)[1], self.length)))
                return True
        return False

    def annotated(self) -> Annotated:
        """The document with links between neighbours in a cluster."""
        last: dict[str, Span] = {}
        links = []
        # Columns can name one span twice in two clusters (an annotation error): the first one holds.
        distinct = {span: name for name, span in reversed(self.mentions)}
        for span in sorted(distinct):
            if distinct[span] in last:
                links.append((span, last[distinct[span]]))
            last[distinct[span]] = span
        twice = len(self.mentions) - len(distinct)
        return Annotated(
            " ".join(self.words),
            tuple(links),
            mentions=tuple(Mention(span) for span in sorted(distinct)),
            skipped={"one span marked twice": twice} if twice else {},
        )
