"""What the commands write: results to stdout, all else to stderr, and no name or text raw."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from headwise.analysis.errors import BadInput
from headwise.prune.recipe_errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Unprinted(BadInput):
    """The result was there and could not be printed."""


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # a reader that has seen enough
    except OSError as error:
        discard(sys.stdout)
        raise Unprinted(f"the result cannot be printed: {error.strerror or error}") from error


def stdout() -> Console:
    """A console for results. It reads no markup: names of models and files may look like it."""
    from rich.console import Console

    class Results(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            with _printing():
                super().print(*objects, **how)

    # Not a terminal: a file or a pipe takes lines as long as they are.
    width = None if sys.stdout.isatty() else 160
    return Results(markup=False, highlight=False, emoji=False, width=width)


def put(line: str) -> None:
    """Print one result line, whole, however long."""
    with _printing():
        sys.stdout.write(printable(line, 100_000) + "\n")
        sys.stdout.flush()


def put_json(content: Any) -> None:
    """Print a result for machines; JSON has no NaN, a missing number is null."""
    from headwise.analysis.plain import plain

    with _printing():
        sys.stdout.write(json.dumps(plain(content), indent=2, ensure_ascii=True, allow_nan=False) + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    """Say something beside the results, on stderr."""
    _say(printable(line, 10_000) + "\n")


def complain(message: str) -> None:
    """Say what went wrong, on stderr; line breaks of the message stay, all other control characters are shown."""
    lines = [printable(line, 2_000) for line in str(message).split("\n")]
    _say("headwise: " + "\n".join(lines) + "\n")


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # Nobody is listening (`2>&-`, a full disk): the exit code tells it all the same.
        discard(sys.stderr)


@contextlib.contextmanager
def streams() -> Iterator[None]:
    r"""Inside the block there are both streams, closed or not (`>&-`), and they take every character.

    What an encoding has no sign for is written as its number: `\u2026`.
    """
    names = ("stdout", "stderr")
    was = {name: getattr(sys, name) for name in names}
    errors = {name: getattr(stream, "errors", None) for name, stream in was.items()}
    opened = []
    for name, stream in was.items():
        if stream is None:
            # It takes the lowest free number: no file of the run may become what others take for the terminal.
            opened.append(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
            setattr(sys, name, opened[-1])
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for name, stream in was.items():
            setattr(sys, name, stream)
            if hasattr(stream, "reconfigure"):
                with contextlib.suppress(OSError):
                    stream.reconfigure(errors=errors[name])
        for stream in opened:
            stream.close()


def discard(stream: TextIO) -> None:
    """Drop what a stream still holds: Python would complain once more, or exit with 120, when it closes it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose cells are shown as they are; columns of numbers should be told by a leading `>`."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(
            Text(column.removeprefix(">")), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(printable(cell, 400)) for cell in row))
    return made


#: Who logs; the hub's client tells every attempt to reach it.
_SPEAKING = ("headwise", "huggingface_hub", "datasets")


@contextlib.contextmanager
def speaking(quiet: bool) -> Iterator[None]:
    """Inside the block work shows its progress, or, quiet, nothing below an error."""
    import warnings

    from headwise.analysis.progress import progress_shown

    levels = {name: logging.getLogger(name).level for name in _SPEAKING}
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
            # A library that is not there yet sets its own level when it comes.
            os.environ.setdefault("HF_HUB_VERBOSITY", "error")
            os.environ.setdefault("DATASETS_VERBOSITY", "error")
            for name in levels:
                logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items() if quiet else ():
                logging.getLogger(name).setLevel(level)
