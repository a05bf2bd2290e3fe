"""Again: the pages of a folder that is there already, and what an unfinished one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headwise.analysis.errors import BadInput
from headwise.prune.report.folder import read_json
from headwise.prune.report.sweep_page import write_sweep
from headwise.prune.report.write import write

#: What a run of `prune` ends with, in the order in which it is made.
_STAGES = ("evidence", "plan.json", "proof.json", "accuracy.json", "speed.json", "checkpoint")


def write_again(folder: str | Path) -> dict[str, Path]:
    """Rebuild the pages of a run, an analysis or a sweep from its files; returns their paths by ending.

    Raises:
        BadInput: nothing there that a page can be made from, or nothing can be written.

    >>> write_again("no-such-run")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: no-such-run: no such folder; give the folder of a finished run
    """
    folder = Path(folder)
    if not (folder / "sweep.json").is_file():
        if any(folder.glob("budget-*/plan.json")):
            raise BadInput(f"{folder}: a sweep that is not finished{_resumed(folder, 'sweep')}")
        return write(folder)
    for point in read_json(folder / "sweep.json").get("points") or ():
        write(folder / str(point["folder"]))
    return write_sweep(folder)


def unfinished(folder: str | Path) -> Iterator[str]:
    """What a run's folder lacks, and how to go on with it; nothing if it is whole.

    >>> list(unfinished("no-such-run"))
    []
    """
    folder = Path(folder)
    partial = folder.name.endswith(".partial")
    of_sweep = any((place / "sweep.json").is_file() for place in (folder, folder.parent))
    if of_sweep or not (partial or (folder / "recipe.yaml").is_file()):
        return
    verb = "prune" if (folder / "recipe.yaml").is_file() else "analyze"
    missing = [name for name in _STAGES if not (folder / name).exists()] if verb == "prune" else []
    if partial or missing:
        lacks = f": {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
        yield f"{folder} is not finished{lacks}{_resumed(folder, verb)}"


def _resumed(folder: Path, verb: str) -> str:
    if not folder.name.endswith(".partial"):
        return ""
    own = folder.with_name(folder.name.removesuffix(".partial"))
    return f"; go on with it by the command that began it and `--resume --output-dir {own}` (headwise {verb} …)"
