"""What the program says about an exception, and the exit code that goes with it."""

from __future__ import annotations

from headwise.analysis.errors import HeadwiseError, causes
from headwise.prune.cli.terminal import Unprinted
from headwise.prune.folder import out_of_room

_LONGEST = 600


def explain(error: Exception, debug: str = "HEADWISE_DEBUG") -> tuple[str, int]:
    """One message and the exit code.

    >>> from headwise.analysis.errors import BadInput
    >>> explain(BadInput("no such column"))
    ('no such column', 2)
    """
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):
        return "interrupted", 130  # which torch's exporter takes for a failure of its own
    full = "" if isinstance(error, Unprinted) else _no_room(error)
    if full:
        return f"{full}; free some space or give another --output-dir; no folder of that name was left half-written", 2
    if isinstance(error, HeadwiseError):
        return str(error), error.exit_code
    said = getattr(error, "format_message", None)
    if said is not None:  # usage: the parser's own exceptions, whichever release of it is installed
        return f"{said()} (see --help)", int(getattr(error, "exit_code", 2))
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; lower --batch-size, --max-length, or the recipe's data.batch_size", 2
    if isinstance(error, OSError):
        return _about_files(error), 2
    if isinstance(error, RecursionError) and "JSON" in str(error):
        return f"a JSON file is nested too deeply to be what it should be ({_short(error)})", 2
    message = (
        f"internal fault: {type(error).__name__}: {_short(error)}\nThis is a defect of headwise; "
        f"run again with {debug}=1 (or `headwise --debug …`) for the traceback, and report it."
    )
    return message, 1


def _no_room(error: BaseException) -> str:
    """What to say if the disk takes no more, however deep that is wrapped, also in words alone."""
    for cause in causes(error):
        why = out_of_room(cause)
        if why:
            # A copy names what it reads, then what it writes.
            name = getattr(cause, "filename2", None) or getattr(cause, "filename", None)
            return f"{why}{f' (writing {name})' if name else ''}"
    return ""


def _about_files(error: OSError) -> str:
    if error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return _short(error)


def _short(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
