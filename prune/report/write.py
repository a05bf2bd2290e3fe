"""Write a report beside the run that it describes: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headwise.analysis.errors import BadInput
from headwise.prune.report.content import content
from headwise.prune.report.html import html
from headwise.prune.report.json import json
from headwise.prune.report.markdown import markdown


def write(run_folder: str | Path) -> dict[str, Path]:
    """Write report.html, report.md and report.json into a run folder; returns their paths by ending.

    Args:
        run_folder: what `headwise prune` or `headwise analyze` wrote; an older report in it is replaced.

    Raises:
        BadInput: the folder is no run folder, one of its files cannot be read, or nothing can be written.
    """
    run_folder = Path(run_folder)
    report = content(run_folder)
    pages = {"html": html(report), "md": markdown(report), "json": json(report)}
    return write_all(run_folder, {f"report.{ending}": text for ending, text in pages.items()})


def write_all(folder: Path, texts: Mapping[str, str]) -> dict[str, Path]:
    """Write several files; none is replaced before all are on the disk. Returns paths by file ending.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_all(Path(folder), {"a.txt": "text"})["txt"].read_text()
    'text'
    """
    waiting: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # Always the same name, so that what a killed process left is written over and moves to its place.
            waiting.append((folder / f".{name}.new", folder / name))
            with waiting[-1][0].open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for temporary_path, path in waiting:
            temporary_path.replace(path)
    except OSError as problem:
        raise BadInput(
            f"{folder}: the report cannot be written ({problem}); free space or choose another folder"
        ) from problem
    finally:
        for temporary_path, _ in waiting:
            temporary_path.unlink(missing_ok=True)
    return {path.suffix.lstrip("."): path for _, path in waiting}
