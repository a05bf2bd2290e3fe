"""Tables of images or clips: a folder with a class a sub-folder, or the cells of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.media import KINDS, Kind, Media, MissingLibrary, media_of
from headwise.analysis.corpus.tables import Table, open_table
from headwise.analysis.errors import BadInput

#: Tables beside the files, by the names that the data set hub gives them; `file_name` says which file is meant.
_TABLES = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet")
_FILE = "file_name"
#: How data sets name the features whose cells are files.
FEATURES: dict[str, Kind] = {"Image": "image", "Audio": "audio"}


def kind_of(folder: Path) -> Kind | None:
    """What a folder is full of: images, clips, or None for neither.

    Raises:
        BadInput: both, so that nobody can tell which is meant.

    >>> kind_of(Path("/no-such-folder")) is None
    True
    """
    found = {KINDS[path.suffix.lower()] for path in _files(folder)}
    if len(found) > 1:
        raise BadInput(f"{folder}: images and clips in one folder; give a folder with one kind")
    return next(iter(found), None)


def folder_table(folder: Path, kind: Kind) -> Table:
    """A folder as a table: a column of the kind's name, the path, and the class or what a table says of each file.

    The class is the sub-folder; a `metadata.csv` (or .tsv, .jsonl, .parquet) with a column `file_name` says
    anything else. A file that cannot be read has None in the kind's column.

    Raises:
        BadInput: the table names a file that is not there, or not in the folder.
    """
    beside = next((folder / name for name in _TABLES if (folder / name).is_file()), None)
    if beside is None:
        paths = _files(folder)
        classes = [path.parent.relative_to(folder).as_posix() for path in paths]
        extra: dict[str, Sequence[Any]] = {"label": classes} if set(classes) != {"."} else {}
    else:
        paths, extra = _told(folder, beside)
    columns: dict[str, Sequence[Any]] = {
        kind: [_or_none(kind, path) for path in paths],
        "path": [path.relative_to(folder).as_posix() for path in paths],
        **extra,
    }
    names = list(columns)
    return Table(names, lambda i: columns[names[i]], media=(kind,))


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in KINDS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _told(folder: Path, beside: Path) -> tuple[list[Path], dict[str, Sequence[Any]]]:
    table = open_table(beside)
    names = [str(name) for name in table.values(table.find(_FILE, str(beside), "file"))]
    for name in names:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{beside}: {name!r} is outside the folder")
        if not (folder / name).is_file():
            raise BadInput(f"{beside}: names {name!r}, which is not there")
    rest = {name: table.values(i) for i, name in enumerate(table.columns) if name != _FILE}
    return [folder / name for name in names], rest


def dataset_table(rows: Any) -> Table | None:
    """A data set's split as a table whose images or clips are read when needed; None where it has neither.

    Args:
        rows: a split as `datasets` opens it.
    """
    kinds = {name: FEATURES[kind] for name, one in rows.features.items() if (kind := type(one).__name__) in FEATURES}
    if not kinds:
        return None
    for name in kinds:
        rows = rows.cast_column(name, type(rows.features[name])(decode=False))
    names = list(rows.column_names)

    def values(i: int) -> Sequence[Any]:
        if names[i] not in kinds:
            return rows[names[i]][:]  # type: ignore[no-any-return]
        return [_of_cell(kinds[names[i]], _Cell(rows, names[i], row)) for row in range(len(rows))]

    return Table(names, values, media=tuple(kinds))


@dataclass(frozen=True)
class _Cell:
    """Gives the bytes of one cell of a data set."""

    rows: Any
    column: str
    row: int

    @property
    def found(self) -> Mapping[str, Any]:
        return self.rows.select_columns([self.column])[self.row][self.column] or {}

    def __call__(self) -> bytes:
        return bytes(self.found["bytes"])


def _of_cell(kind: Kind, cell: _Cell) -> Media | None:
    found = cell.found
    if found.get("bytes"):
        return _or_none(kind, cell)
    return _or_none(kind, Path(found["path"])) if found.get("path") else None


def _or_none(kind: Kind, content: Any) -> Media | None:
    try:
        return media_of(kind, content)
    except MissingLibrary:
        raise
    except BadInput:
        return None
