"""What the commands write: results to stdout, all else to stderr, and no name or text raw."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwise.prune.recipe_errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def stdout() -> Console:
    """A console for results. It reads no markup: names of models and files may look like it."""
    from rich.console import Console

    # Not a terminal: a file or a pipe takes lines as long as they are.
    width = None if sys.stdout.isatty() else 160
    return Console(markup=False, highlight=False, emoji=False, width=width)


def put(line: str) -> None:
    """Print one result line, whole, however long."""
    sys.stdout.write(printable(line, 100_000) + "\n")


def put_json(content: Any) -> None:
    """Print a result for machines; JSON has no NaN, a missing number is null."""
    from headwise.analysis.plain import plain

    sys.stdout.write(json.dumps(plain(content), indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def note(line: str) -> None:
    """Say something beside the results, on stderr."""
    sys.stderr.write(printable(line, 10_000) + "\n")


def complain(message: str) -> None:
    """Say what went wrong, on stderr; line breaks of the message stay, all other control characters are shown."""
    lines = [printable(line, 2_000) for line in str(message).split("\n")]
    sys.stderr.write("headwise: " + "\n".join(lines) + "\n")
    sys.stderr.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose cells are shown as they are; columns of numbers should be told by a leading `>`."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(Text(column.removeprefix(">")), justify="right" if column.startswith(">") else "left")
    for row in rows:
        made.add_row(*(Text(printable(cell, 400)) for cell in row))
    return made


@contextlib.contextmanager
def speaking(quiet: bool) -> Iterator[None]:
    """Inside the block work shows its progress, or, quiet, nothing below an error."""
    import warnings

    from headwise.analysis.progress import progress_shown

    spoken = logging.getLogger("headwise")
    level = spoken.level
    shown = not quiet and sys.stderr.isatty()
    # Read when those libraries are first imported, which the commands do inside this block.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not shown:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings(), progress_shown(shown):
        if quiet:
            warnings.simplefilter("ignore")
            spoken.setLevel(logging.ERROR)
        try:
            yield
        finally:
            spoken.setLevel(level)
