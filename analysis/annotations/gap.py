"""GAP: ambiguous pronouns in Wikipedia with two names each (Webster et al. 2018), as tab-separated values."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.annotations.mistakes import Mistakes, read_lines

_COLUMNS = (
    "ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"
)  # fmt: skip


def read_gap(path: str | Path) -> list[Annotated]:
    r"""A text a row: the pronoun, the names A and B as candidates, a link to the right one.

    Rows where neither name is right keep their mentions and have no link. Some of GAP's labels are known to
    be wrong; they are read as they stand.

    Raises:
        BadInput: the file cannot be read, has other columns, or an offset does not point at its mention.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "gap.tsv")
    >>> row = ["1", "Ann met Eve; she ran.", "she", "13", "Ann", "0", "FALSE", "Eve", "8", "TRUE", "u"]
    >>> _ = file.write_text("\n".join(["\t".join(_COLUMNS), "\t".join(row)]))
    >>> read_gap(file)[0].links
    (((13, 16), (8, 11)),)
    """
    mistakes = Mistakes(path)
    lines = read_lines(path)
    good = "\t".join(_COLUMNS)
    if not lines or tuple(lines[0].split("\t"))[: len(_COLUMNS)] != _COLUMNS:
        mistakes.add(1, f"got {(lines or [''])[0][:80]!r}, expected GAP's eleven columns")
        mistakes.stop_if_any(good)
    found = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(_COLUMNS):
            mistakes.add(number, f"got {len(cells)} columns, expected {len(_COLUMNS)}")
            continue
        row = dict(zip(_COLUMNS, cells, strict=True))
        faults = [fault for name in ("Pronoun", "A", "B") if (fault := _fault(row, name))]
        for fault in faults:
            mistakes.add(number, fault)
        if not faults:
            found.append(_annotated(row))
    mistakes.stop_if_any(good)
    return found


def _fault(row: dict[str, str], name: str) -> str:
    """What is wrong with one mention of a row, or nothing."""
    if name != "Pronoun" and row[f"{name}-coref"] not in ("TRUE", "FALSE"):
        return f"{name}-coref: got {row[f'{name}-coref']!r}, expected TRUE or FALSE"
    if not row[f"{name}-offset"].isdecimal():
        return f"{name}-offset: got {row[f'{name}-offset']!r}, expected a number of characters"
    start, end = _span(row, name)
    there = row["Text"][start:end]
    return "" if there == row[name] != "" else f"{name}: expected {row[name]!r} at {start}, the text has {there!r}"


def _span(row: dict[str, str], name: str) -> Span:
    start = int(row[f"{name}-offset"])
    return start, start + len(row[name])


def _annotated(row: dict[str, str]) -> Annotated:
    pronoun, names = _span(row, "Pronoun"), {name: _span(row, name) for name in "AB"}
    mentions = [Mention(pronoun, kind="pronoun"), *(Mention(span, kind="proper") for span in names.values())]
    links = tuple((pronoun, span) for name, span in names.items() if row[f"{name}-coref"] == "TRUE")
    return Annotated(row["Text"], links, candidates=tuple(names.values()), mentions=tuple(mentions))
