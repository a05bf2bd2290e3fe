"""Corpora from files, folders and the data set hub."""

from __future__ import annotations

import errno
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.embedded_text import embedded_corpus
from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.corpus.labelling import choices_of, columns_of, labels_of
from headwise.analysis.corpus.media import Media
from headwise.analysis.corpus.media_tables import dataset_table, folder_table, kind_of
from headwise.analysis.corpus.tables import FORMATS, Table, not_text, open_table, refuse_packed
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput

log = logging.getLogger("headwise")

Column = str | int
#: Names that text columns usually go by, tried in this order when none is given.
_TEXT_NAMES = ("text", "sentence", "content", "review", "sentence1", "premise", "question")
_EMBEDDED = "embedded"
#: The split that data without splits has, and the column that says the class of images and clips.
_TRAIN, _LABEL = "train", "label"


def read_source(
    source: str,
    *,
    split: str | None = None,
    text: Column | None = None,
    label: Column | None = None,
    pair: Column | None = None,
    choices: Column | Sequence[Column] | None = None,
    header: bool | None = None,
    revision: str | None = None,
) -> Corpus:
    """The corpus that a recipe or command names: `embedded`, a file, a folder, or `name[:config]` on the hub.

    Args:
        source: what to read; a file's suffix tells its format (text a line each where there is none).
        split: of a data set; `train` by default.
        text: column of the text, by name or number; guessed from usual names if not given.
        label: column of the label, if there are labels.
        pair: column of the second text, if there are pairs.
        choices: the column with the list of possible answers, or one column for each.
        header: whether a CSV or TSV begins with a header line.
        revision: of a data set on the hub.

    Raises:
        BadInput: nothing there, not readable, or no such column.

    >>> read_source("embedded").source.startswith("pydoc_data.topics")
    True
    """
    if source == _EMBEDDED:
        _refuse(
            source, "text that Python carries", split=split, revision=revision, text=text, label=label, pair=pair,
            choices=choices,
        )  # fmt: skip
        return embedded_corpus()
    path = Path(source).expanduser()
    # A pipe or a device, such as /dev/stdin, is read like a file.
    there = path.exists() and not path.is_dir()
    if there or (not path.exists() and path.suffix.lower() in FORMATS):
        _refuse(source, "a file, not a data set", split=split, revision=revision)
        refuse_packed(path)
        if FORMATS.get(path.suffix.lower(), "text") == "text":
            _refuse_columns(source, text=text, label=label, pair=pair, choices=choices)
            return read_texts(path)
        return read_table(path, text, label, pair, choices=choices, header=header)
    return read_dataset(
        source, split=split or _TRAIN, text=text, label=label, pair=pair, choices=choices, revision=revision
    )


def read_texts(path: str | Path) -> Corpus:
    """A text a line; blank lines are skipped and counted.

    Raises:
        BadInput: the file cannot be read, is not UTF-8, or holds no text.
    """
    path = Path(path).expanduser()
    refuse_packed(path)
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(not_text(path, error)) from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    # The newline at the end of the last line does not begin another one.
    lines = lines[:-1] if lines[-1] == "" else lines
    texts = [Text(line.strip()) for line in lines if line.strip()]
    if not texts:
        raise BadInput(f"{path}: no text in it; expected a text a line")
    skipped = {"empty text": len(lines) - len(texts)} if len(texts) < len(lines) else {}
    return Corpus(texts, source=str(path), skipped=skipped, rows=len(lines))


def read_table(
    path: str | Path,
    text: Column | None = None,
    label: Column | None = None,
    pair: Column | None = None,
    *,
    choices: Column | Sequence[Column] | None = None,
    header: bool | None = None,
) -> Corpus:
    """The rows of a CSV, TSV, JSON-lines, JSON, parquet, Arrow or feather file; JSON may hold whole columns as well.

    Columns are named, or numbered from 0 (-1 is the last) where a CSV or TSV has no header line. A file whose
    quotation marks are text keeps all its rows, and `notes` says so. Rows without text, without the asked
    label, or with too many or too few columns are skipped and counted.

    Raises:
        BadInput: the file cannot be read, or has no such column; the message lists the columns.
    """
    path = Path(path).expanduser()
    if FORMATS.get(path.suffix.lower()) == "text":
        _refuse_columns(str(path), text=text, label=label, pair=pair, choices=choices)
        return read_texts(path)
    asked = (text, label, pair, *columns_of(choices))
    return _corpus(open_table(path, asked, header), str(path), text, label, pair, choices=choices)


def read_dataset(
    name: str,
    config: str | None = None,
    split: str = "train",
    text: Column | None = None,
    label: Column | None = None,
    pair: Column | None = None,
    revision: str | None = None,
    *,
    choices: Column | Sequence[Column] | None = None,
) -> Corpus:
    """One split of a data set: `owner/name[:config]` on the hub, or a local folder.

    A local folder is what `save_to_disk` wrote, holds data files that `datasets` understands, or images or
    clips with a class a sub-folder (or a `metadata.csv`). No code of a data set is ever run. Classes that the
    data set names become those names, in `label_names` their order; its "no label" (-1) counts as skipped.
    Images and clips take the column `label` for their class where none is named.

    Raises:
        BadInput: no such data set, configuration, split or column, or no network to fetch it.
    """
    if config is None and ":" in name and not Path(name).expanduser().exists():
        name, config = name.rsplit(":", 1)
    if (folder := _media_folder(name, split)) is not None:
        kind = kind_of(folder)
        if kind is not None:
            return _corpus(folder_table(folder, kind), f"{name} [{split}]", text, label, pair, choices=choices)
    rows = _load(name, config, split, revision)
    source = name + (f":{config}" if config else "") + f" [{split}]" + (f" @{revision}" if revision else "")
    plain = Table(list(rows.column_names), lambda i: rows[rows.column_names[i]][:])
    pictured = dataset_table(rows)
    table = pictured or plain
    names: list[str] = []
    if label is None and pictured is not None and _LABEL in table.columns:
        label = _LABEL
    if label is not None:
        feature = rows.features[table.columns[table.find(label, source, "label")]]
        # A list of classes (tags of words, several labels of a text) names them in its inner feature.
        names = list(getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None) or [])
    return _corpus(table, source, text, label, pair, names, choices)


def _media_folder(name: str, split: str) -> Path | None:
    """The folder that may hold images or clips: that of the split, or the whole where it has no splits.

    Raises:
        BadInput: a split is asked of a folder that has images or clips, and no such sub-folder.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() or any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        return None
    if (folder / split).is_dir():
        return folder / split
    if split != _TRAIN and kind_of(folder) is not None:
        raise BadInput(f"{name}: no split {split!r}; it would be the sub-folder {folder / split}")
    return folder


def _load(name: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets

    folder = Path(name).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            return _split_of(datasets.load_from_disk(str(folder)), name, split)
        if folder.is_dir():
            return datasets.load_dataset(str(folder), config, split=split)
        return datasets.load_dataset(name, config, split=split, revision=revision)
    except BadInput:
        raise
    # `datasets` raises whatever its layers raise, the network's own errors too; all of it means that the user's data
    # cannot be had.
    except Exception as error:
        unfetched, reason = not_fetched(error), " ".join(str(error).split()).rstrip(".")
        known = (OSError, ValueError, RuntimeError, KeyError, datasets.exceptions.DatasetsError)
        if not unfetched and not isinstance(error, known):
            raise
        what = f"data set {name!r}" + (f", configuration {config!r}" if config else "")
        if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise BadInput(
                f"{what}: {reason}; data sets are unpacked in a cache that has to be writable: set HF_HOME to such a folder"
            ) from error
        if unfetched:
            raise BadInput(f"{what}, split {split!r}: {unfetched}; or give a file") from error
        closed = isinstance(error, datasets.exceptions.DatasetNotFoundError)
        advice = (
            "; if it is private or gated, log in (`hf auth login`) or set HF_TOKEN" if closed else " and the network"
        )
        raise BadInput(
            f"{what}, split {split!r}: {type(error).__name__}: {reason}. Check the name{advice}, or give a file."
        ) from error


def _split_of(found: Any, name: str, split: str) -> Any:
    """The split of what `load_from_disk` gave: a dictionary of splits, or a single one."""
    if not isinstance(found, dict):
        return found
    if split not in found:
        raise BadInput(f"{name}: no split {split!r}; the splits are {', '.join(map(repr, found))}")
    return found[split]


def _refuse(source: str, kind: str, **asked: object) -> None:
    """Tell what was asked of a source that has no such thing, instead of leaving it out in silence."""
    for what, value in asked.items():
        if value is not None:
            raise BadInput(f"{source}: {what} {value!r} asked of {kind}, which has none; leave it out")


def _refuse_columns(source: str, **columns: Column | Sequence[Column] | None) -> None:
    for role, column in columns.items():
        if column is not None:
            raise BadInput(
                f"{source}: {role} column {column!r} asked of a file with a text a line, which has none; "
                f"give a table ({', '.join(name for name, kind in FORMATS.items() if kind != 'text')})"
            )


def _corpus(
    table: Table,
    source: str,
    text: Column | None,
    label: Column | None,
    pair: Column | None,
    names: Sequence[str] = (),
    choices: Column | Sequence[Column] | None = None,
) -> Corpus:
    where = table.find(_guess_text(table, source) if text is None else text, source, "text")
    seen = table.columns[where] if table.columns[where] in table.media else ""
    if seen and label is None and _LABEL in table.columns:
        label = _LABEL
    firsts = table.values(where)
    called = table.values(table.columns.index("path")) if seen and "path" in table.columns else range(len(firsts))
    seconds = None if pair is None else table.values(table.find(pair, source, "pair"))
    labels = None if label is None else labels_of(table.values(table.find(label, source, "label")), names)
    answers, labels = choices_of(table, choices, labels, source)
    skipped: Counter[str] = Counter(table.skipped)
    texts = []
    for i, value in enumerate(firsts):
        media = value if isinstance(value, Media) else None
        first = _as_text(value, source, table.columns[where], i) if not seen else str(called[i]) if media else ""
        second = None if seconds is None else _as_text(seconds[i], source, str(pair), i)
        if seen and media is None:
            skipped[f"unreadable {seen}"] += 1
        elif not first or second == "":
            skipped["empty text"] += 1
        elif answers and len(answers[i]) < 2:
            skipped["fewer than two choices"] += 1
        elif labels is not None and labels[i] is None:
            skipped["no label"] += 1
        else:
            said = None if labels is None else labels[i]
            texts.append(Text(first, second, said, media=media, choices=answers[i] if answers else ()))
    if not texts:
        raise BadInput(f"{source}: no usable row (skipped: {dict(skipped) or 'none'})")
    rows = len(firsts) + sum(table.skipped.values())
    notes = (*table.notes, *_columns_in_a_row(source, table.columns[where], firsts))
    return Corpus(texts, source, dict(skipped), tuple(names), notes, rows)


def _columns_in_a_row(source: str, column: str, firsts: Sequence[Any]) -> tuple[str, ...]:
    """What to know where the only row holds a list, which may be a whole column as well as the words of one text."""
    if len(firsts) != 1 or not isinstance(firsts[0], list) or len(firsts[0]) < 2:
        return ()
    note = (
        f"the only row holds a list in {column!r}, read as the {len(firsts[0])} words of one text; if they are texts, "
        "write a row for each, or whole columns to a .json file"
    )
    log.warning("%s: %s", source, note)
    return (note,)


def _guess_text(table: Table, source: str) -> str | int:
    if table.media:
        return table.media[0]
    if len(table.columns) == 1:
        return 0
    for name in _TEXT_NAMES:
        if name in table.columns:
            return name
    raise BadInput(
        f"{source}: which column holds the text? The columns are {', '.join(map(repr, table.columns))}; "
        "name one (--text-column, or `text:` in a recipe)"
    )


def _as_text(value: Any, source: str, column: str, row: int) -> str:
    """The text of a cell; a list of words is joined by blanks, nothing at all is an empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)
    if not isinstance(value, str):
        raise BadInput(
            f"{source}: column {column!r}, row {row}: got {type(value).__name__} {str(value)[:40]!r}, expected text"
        )
    return value.strip()
