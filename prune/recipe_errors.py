"""What a recipe got wrong: every mistake at once, each with its place and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.analysis.errors import BadInput

Path = tuple[str | int, ...]

SHOWN = 40
"""More mistakes than these are counted, not printed."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with a recipe.

    Attributes:
        path: the field, from the recipe's top: `("keep", "heads", "3", 1)`.
        problem: what was got and what was expected, in one line.
        valid: what would have been accepted, when that is a list of names.
        place: `file:line`, or the command-line option that set the field.
    """

    path: Path
    problem: str
    valid: tuple[str, ...] = ()
    place: str = ""

    def line(self) -> str:
        """The mistake in one line, as it is printed.

        >>> print(Mistake(("seed",), "expected a whole number, got 'x'", place="my.yaml:3").line())
        my.yaml:3: seed: expected a whole number, got 'x'
        """
        parts = [part for part in (self.place, dotted(self.path)) if part]
        valid = f"; valid: {_listed(self.valid)}" if self.valid else ""
        return ": ".join([*parts, self.problem + valid])


class RecipeError(BadInput):
    """A recipe cannot be used. `mistakes` holds all of them; the message shows one a line."""

    def __init__(self, mistakes: Sequence[Mistake], where: str = "recipe") -> None:
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        lines = [mistake.line() for mistake in self.mistakes[:SHOWN]]
        if count > SHOWN:
            lines.append(f"… and {count - SHOWN} more")
        noun = "1 mistake" if count == 1 else f"{count} mistakes"
        super().__init__("\n  ".join([f"{printable(where)}: {noun}; nothing was changed", *lines]))


@dataclass(frozen=True)
class Places:
    """Where each field of a recipe was written; two recipes that say the same are equal wherever they stand.

    Attributes:
        where: the file's name.
        lines: path → `file:line` or the option that set it.
    """

    where: str = "recipe"
    lines: dict[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """The place of a field, or of the closest field around it; what `--set` changed in it is to blame first.

        >>> Places("my.yaml", {("keep",): "my.yaml:4"}).of(("keep", "heads"))
        'my.yaml:4'
        >>> lines = {("remove",): "my.yaml:4", ("remove", "heads"): "--set remove.heads=900"}
        >>> Places("my.yaml", lines).of(("remove",))
        '--set remove.heads=900'
        """
        inside = (line for known, line in self.lines.items() if known[: len(path)] == path and len(known) > len(path))
        changed = next((line for line in inside if line.startswith("--set")), None)
        if path and changed is not None:
            return changed
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return self.where

    def instead(self, path: Path, line: str) -> Places:
        """The same places with another for a field and all that stands in it.

        >>> Places("my.yaml", {("remove", "heads"): "my.yaml:4"}).instead(("remove",), "budget 0.9").of(("remove", "heads"))
        'budget 0.9'
        """
        others = {known: place for known, place in self.lines.items() if known[: len(path)] != path}
        return Places(self.where, {**others, path: line})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None  # type: ignore[assignment]


def did_you_mean(got: object, valid: Iterable[str]) -> str:
    """The question to ask about a misspelt name, or nothing if no valid name is close.

    >>> did_you_mean("fractoin", ["heads", "fraction"])
    "; did you mean 'fraction'?"
    """
    close = difflib.get_close_matches(str(got)[:100].lower(), list(valid), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def dotted(path: Path) -> str:
    """A field's path as people write it.

    >>> dotted(("keep", "heads", "3", 1))
    'keep.heads.3[1]'
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path)
    return text.removeprefix(".")


def shown(value: Any, width: int = 60) -> str:
    r"""A value as a message shows it: one short line without control characters.

    >>> shown("a\nb")
    "text 'a\\nb'"
    """
    words = {
        bool: "",
        int: "number ",
        float: "number ",
        str: "text ",
        list: "the list ",
        dict: "the mapping ",
    }
    if value is None:
        return "nothing"
    # A whole number may have more digits than Python agrees to print; a list may be long.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    start = value[: 2 * width] if isinstance(value, str | list) else value
    text = repr(start)
    if isinstance(value, bool):
        text = text.lower()
    return words.get(type(value), "") + (text if len(text) <= width else text[: width - 1] + "…")


def printable(text: object, width: int = 200) -> str:
    r"""The text with everything escaped that could move a terminal's cursor or start a new line.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    string = str(text)
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in string[:width])
    return safe if len(string) <= width else safe + "…"


def _listed(names: Sequence[str], most: int = 40) -> str:
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more
