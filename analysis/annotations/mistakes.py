"""All mistakes of an annotation file at once, each with its line."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.errors import BadInput

#: How many mistakes a message lists before it only counts them.
_SHOWN = 10


class Mistakes:
    """Collects what is wrong with a file, and says it once.

    >>> mistakes = Mistakes("data.jsonl")
    >>> mistakes.add(3, "text: missing")
    >>> mistakes.found
    ['data.jsonl:3: text: missing']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.found: list[str] = []

    def add(self, line: int, what: str) -> None:
        """Note a mistake in a line, counted from 1."""
        self.found.append(f"{self.path}:{line}: {what}")

    def stop_if_any(self, expected: str) -> None:
        """Raise BadInput with the mistakes so far, ten of them in full, and what a good row looks like."""
        if not self.found:
            return
        shown = self.found[:_SHOWN]
        if len(self.found) > _SHOWN:
            shown.append(f"and {len(self.found) - _SHOWN} more")
        count = f"{len(self.found)} mistake{'s' if len(self.found) > 1 else ''}"
        raise BadInput(f"{self.path}: {count}\n  " + "\n  ".join(shown) + f"\nA good row: {expected}")


def read_lines(path: str | Path) -> list[str]:
    r"""The lines of a UTF-8 text file, without their ends; only \n and \r\n end a line.

    Raises:
        BadInput: there is no such file, or it is not UTF-8.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "two.txt")
    >>> _ = file.write_text("a\u2028b\nc\n", encoding="utf-8")
    >>> len(read_lines(file))
    2
    """
    try:
        content = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected an annotation file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}; convert it to UTF-8 first") from error
    lines = content.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines
