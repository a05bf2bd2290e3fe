"""The commands: one verb a file, each a thin door to the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    0 done, 1 internal fault or failed proof, 2 bad input, 3 limits broken, 130 interrupted.

    >>> main(["recipes", "check", "quickstart"])
    quickstart: no mistakes
    0
    """
    try:
        # Here, so that an interruption in the first tenth of a second finds somebody who hears it, too.
        from headwise.prune.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("headwise: interrupted\n")
        return 130
