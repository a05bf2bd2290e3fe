"""Tables from files: CSV, TSV, JSON, parquet and Arrow, as named columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.json_tables import json_columns
from headwise.analysis.errors import BadInput

#: What the suffixes mean.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
    ".text": "text",
}
_TABLES = [suffix for suffix, kind in FORMATS.items() if kind != "text"]
_WELL_QUOTED = re.compile(r'"(?:[^"]|"")*"')
# Not splitlines(): text may hold U+2028, vertical tabs and other marks that end no line of a table.
_LINE_END = re.compile(r"\r\n?|\n")
_NO_LIMIT = 2**31 - 1
#: Names of columns that tables usually have; as a whole cell they are no text and no label.
_USUAL = {"text", "texts", "sentence", "sentence1", "sentence2", "label", "labels", "premise", "hypothesis", "question"}


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, read when asked for.

    Attributes:
        columns: names, in the file's order; `0`, `1`, … where the file has no header.
        values: gives one column's values by its position.
        notes: what a reader should know about how the file was read.
        skipped: rows left out, by reason.
        media: the columns that hold images or clips, None where one cannot be read.
    """

    columns: list[str]
    values: Callable[[int], Sequence[Any]]
    notes: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    media: tuple[str, ...] = ()

    def find(self, column: str | int, where: str, role: str) -> int:
        """Position of a column given by name or by number (-1 is the last).

        Raises:
            BadInput: there is no such column, or several; the message lists those that exist.

        >>> Table(["text", "label"], lambda i: []).find(-1, "a.csv", "label")
        1
        """
        if isinstance(column, str) and column in self.columns:
            places = [str(i) for i, name in enumerate(self.columns) if name == column]
            if len(places) > 1:
                raise BadInput(
                    f"{where}: {len(places)} columns are called {column!r}; give that of the {role} by its number: "
                    f"{' or '.join(places)}"
                )
            return int(places[0])
        number = _number(column)
        if number is not None and -len(self.columns) <= number < len(self.columns):
            return number % len(self.columns)
        raise BadInput(
            f"{where}: no column {column!r} for the {role}; the columns are "
            f"{', '.join(map(repr, self.columns)) or '(none)'}. If the file has no header line, "
            "give columns by number: 0 is the first, -1 the last."
        )


#: What programs keep for themselves, also where it is packed and so begins as if it could be unpacked.
_KEPT = {".xlsx", ".xls", ".ods", ".docx", ".odt", ".pdf", ".pkl", ".pickle", ".npy", ".npz", ".orc", ".avro"}
#: How files that have to be unpacked first begin.
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"(\xb5/\xfd": "zstd"}


def refuse_packed(path: Path) -> None:
    """Refuse a file that is packed, whatever its name says, and one of a program whose files are not read.

    Raises:
        BadInput: with what packed it, or what to save it as; or it cannot be read.

    >>> refuse_packed(Path("/no/such/file"))
    """
    if not path.is_file():  # a pipe would lose what is read here
        return
    if path.suffix.lower() in _KEPT:
        raise BadInput(f"{path}: {path.suffix} files are not read; save it as {', '.join(sorted(_TABLES))}")
    try:
        with path.open("rb") as file:
            first = file.read(6)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    packer = next((name for mark, name in _PACKED.items() if first.startswith(mark)), None)
    if packer is not None:
        raise BadInput(f"{path}: packed by {packer}; unpack it first")


def not_text(path: Path, error: UnicodeDecodeError) -> str:
    """What to say of a file that holds something else than text.

    >>> not_text(Path("a.txt"), UnicodeDecodeError("utf-8", b"x", 0, 1, "no"))[:61]
    "a.txt: not UTF-8 text ('utf-8' codec can't decode byte 0x78 i"
    """
    return f"{path}: not UTF-8 text ({error}); write it as UTF-8, or as a table: {', '.join(_TABLES)}"


def _number(column: str | int | None) -> int | None:
    """The column's number, if that is how it was given (a command line gives numbers as text)."""
    if isinstance(column, int):
        return column
    return int(column) if column is not None and re.fullmatch(r"-?\d+", column) else None


def open_table(path: Path, columns: Sequence[str | int | None] = (), header: bool | None = None) -> Table:
    """The table in a file, its format by its suffix.

    Args:
        path: .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet, .pq, .arrow or .feather.
        columns: the columns that will be asked for; only numbers mean that a CSV or TSV has no header line, unless
            its first line has one of the usual names of columns (`text`, `label`, …) as a cell; `notes` says so.
        header: says so outright.

    Raises:
        BadInput: the file is missing, empty, not readable or not what its suffix says.
    """
    kind = FORMATS.get(path.suffix.lower())
    refuse_packed(path)
    try:
        if kind == "parquet":
            return _parquet(path)
        if kind == "arrow":
            return _arrow(path)
        if kind == "json":
            return _json(path, path.read_text("utf-8-sig"))
        if kind in ("csv", "tsv"):
            if header is None:
                given = [column for column in columns if column is not None]
                header = not given or any(_number(column) is None for column in given)
                return _delimited(path, kind, header, guess=not header)
            return _delimited(path, kind, header)
    except UnicodeDecodeError as error:
        raise BadInput(not_text(path, error)) from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    raise BadInput(f"{path}: unknown kind of table; expected one of {', '.join(FORMATS)}")


def _delimited(path: Path, kind: str, header: bool, *, guess: bool = False) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        content = file.read()
    delimiter = _delimiter(content, kind)
    rows, notes = _parse(content, delimiter)
    if not rows:
        raise BadInput(f"{path}: the file is empty")
    if guess and any(cell.strip().lower() in _USUAL for cell in rows[0]):
        header = True
        notes += ("the first line is taken for a header, by its names; header: false reads it as a row",)
    columns = rows[0] if header else [str(i) for i in range(len(rows[0]))]
    body = rows[1:] if header else rows
    whole = [row for row in body if len(row) == len(columns)]
    skipped = {"wrong number of columns": len(body) - len(whole)} if len(whole) < len(body) else {}
    return Table(columns, lambda i: [row[i] for row in whole], notes, skipped)


def _delimiter(content: str, kind: str) -> str:
    """Tab for TSV; for CSV the comma, unless the first line has none but has semicolons or tabs."""
    if kind == "tsv":
        return "\t"
    first = content.split("\n", 1)[0]
    return next((mark for mark in ",;\t" if mark in first), ",")


def _parse(content: str, delimiter: str) -> tuple[list[list[str]], tuple[str, ...]]:
    """Rows, reading quotation marks as quoting or as text, whichever keeps every row whole.

    Many published TSVs hold text with bare quotation marks; read as quoting, one mark swallows every line
    up to the next. Quoting is right where every row then has the same width and, if the lines taken
    literally are of one width too, where every field that begins with a mark is a properly quoted one.
    """
    literal = [line.split(delimiter) for line in _LINE_END.split(content) if line.strip()]
    if '"' not in content:
        return literal, ()
    quoted = _quoted(content, delimiter)
    is_literal = _uniform(literal)
    if quoted is not None and _uniform(quoted) and not (is_literal and _has_bare_quotes(literal)):
        return quoted, ()
    if is_literal or quoted is None:
        note = 'quotation marks are read as text: as CSV quoting they are unbalanced ("bare")'
        return literal, (note,)
    return quoted, ()


def _quoted(content: str, delimiter: str) -> list[list[str]] | None:
    before = csv.field_size_limit(_NO_LIMIT)
    try:
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
        return [row for row in reader if any(cell.strip() for cell in row)]
    except csv.Error:
        return None
    finally:
        csv.field_size_limit(before)


def _uniform(rows: Sequence[Sequence[str]]) -> bool:
    return len({len(row) for row in rows}) <= 1


def _has_bare_quotes(rows: Sequence[Sequence[str]]) -> bool:
    return any(cell.startswith('"') and not _WELL_QUOTED.fullmatch(cell) for row in rows for cell in row)


def _json(path: Path, content: str) -> Table:
    columns, notes = json_columns(path, content, lines=path.suffix.lower() != ".json")
    names = list(columns)
    return Table(names, lambda i: columns[names[i]], notes)


def _parquet(path: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = list(file.schema_arrow.names)
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"{path}: not a parquet file: {error}") from error
    return Table(columns, lambda i: file.read(columns=[columns[i]]).column(0).to_pylist())


def _arrow(path: Path) -> Table:
    """What `datasets` keeps in its folders (a stream), or what data frames write as feather (a file)."""
    import pyarrow
    import pyarrow.feather
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(path)) as file:
            try:
                table = pyarrow.ipc.open_stream(file).read_all()
            except pyarrow.ArrowInvalid:
                table = pyarrow.feather.read_table(path)
            # Nothing is checked while it is read: what is damaged would end the whole process.
            table.validate(full=True)
    except pyarrow.ArrowException as error:
        raise BadInput(f"{path}: not an Arrow file that can be read: {error}") from error
    return Table(list(table.column_names), lambda i: table.column(i).to_pylist())
