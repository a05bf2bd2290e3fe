"""What can go wrong, as the user sees it.

Every message says where, what was got, what was expected, and what to do. The command line prints the
message alone and leaves with `exit_code`; a library user catches `HeadwiseError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def named(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are.

    >>> named(["0", "1", "2"], most=2), named(["0", "1"], most=2)
    ('0, 1 and 1 more', '0, 1')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class HeadwiseError(Exception):
    """Anything that headwise raises on purpose."""

    exit_code = 1


class BadInput(HeadwiseError, ValueError):
    """Something the user gave cannot be used: a path, a column, a head, a recipe."""

    exit_code = 2


class UnknownModel(BadInput):
    """No attention site could be understood; the message lists the attention-like modules found."""


class CannotCut(BadInput, NotImplementedError):
    """The site can be gated but not cut; the message names the structural reason."""


class ProofFailed(HeadwiseError, RuntimeError):
    """A gated and a cut site disagree by more than the contract allows: nothing is saved."""


def first_line(error: BaseException) -> str:
    r"""What an error of another library says, in a line; its name where it says nothing.

    >>> first_line(ValueError("\n no such key\nlong story")), first_line(KeyError())
    ('no such key', 'KeyError')
    """
    return next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came of, the last first.

    >>> told = BadInput("no such file")
    >>> told.__cause__ = KeyError("file")
    >>> [type(one).__name__ for one in causes(told)]
    ['BadInput', 'KeyError']
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
