"""Sums kept on disk while an analysis goes on, so that an interrupted one goes on from there, to the same bits."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.capture.seen import Reducer
from headwise.analysis.capture.totals import packed, put_back, told, unpacked
from headwise.analysis.errors import BadInput

#: Seconds between two times that sums are written; the end of a pass is written if the pass took a twelfth of it.
SECONDS = 60.0
#: Writing takes at most this share of the time.
SHARE = 0.02


@dataclass(frozen=True)
class Keeping:
    """Where an analysis keeps its sums, and what tells it from every other analysis.

    Attributes:
        folder: made when there is something to keep.
        marks: by name, what must be the same for the sums to be gone on with: model, texts, settings, versions.

    >>> Keeping(Path("sums"), {"model": "a"}).of("texts").path.name
    'texts-0.pt'
    """

    folder: Path
    marks: Mapping[str, str]

    def of(self, name: str, rank: int = 0) -> KeptPass:
        """One pass over data; every process keeps its own share."""
        return KeptPass(self, self.folder / f"{name}-{rank}.pt")


class KeptPass:
    """The sums of one pass over data.

    Args:
        keeping: of the whole analysis.
        path: the file.
    """

    def __init__(self, keeping: Keeping, path: Path) -> None:
        self.keeping, self.path = keeping, path
        self.position, self.done = 0, False
        self._written, self._cost = time.monotonic(), 0.0

    def begin(self, reducers: Sequence[Reducer], went: Any) -> dict[str, Any]:
        """Give reducers and counts what an interrupted pass left, if it left anything.

        Args:
            reducers: fresh ones.
            went: the counts of the pass.

        Returns:
            What else the pass had kept; nothing if it starts.

        Raises:
            BadInput: what is there belongs to another analysis, or cannot be read.
        """
        if not self.path.exists():
            return {}
        state = self._read()
        self._check(state["marks"])
        for reducer, sums in zip(reducers, state["sums"], strict=True):
            put_back(reducer, sums)
        for name, value in state["went"].items():
            setattr(went, name, value)
        self.position, self.done = state["position"], state["done"]
        torch.set_rng_state(state["random"])
        return dict(state["more"])

    def after(self, reducers: Sequence[Reducer], went: Any, more: Mapping[str, Any], *, done: bool = False) -> None:
        """Count a batch (or the end), and write if it is time."""
        self.position += not done
        self.done = done
        since = time.monotonic() - self._written
        wait = max(SECONDS, self._cost / SHARE)
        if since < (SECONDS / 12 if done else wait):
            return
        start = time.monotonic()
        self._write(reducers, went, more)
        self._written = time.monotonic()
        self._cost = self._written - start

    def _write(self, reducers: Sequence[Reducer], went: Any, more: Mapping[str, Any]) -> None:
        state = {
            "marks": dict(self.keeping.marks),
            "position": self.position,
            "done": self.done,
            "went": {field.name: getattr(went, field.name) for field in fields(went)},
            "sums": [told(reducer) for reducer in reducers],
            "random": torch.get_rng_state(),
            "more": dict(more),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.new")
        with fresh.open("wb") as file:
            torch.save(packed(state), file)
            file.flush()
            # A name that points to half a file would be worse than none.
            os.fsync(file.fileno())
        fresh.replace(self.path)

    def _read(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = unpacked(torch.load(self.path, weights_only=True))
            missing = {"marks", "position", "done", "went", "sums", "random", "more"} - set(state)
        except (OSError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInput(f"{self.path} cannot be read ({first}); delete it to start afresh") from error
        if missing:
            raise BadInput(f"{self.path} holds no sums of an analysis; delete it to start afresh")
        return state

    def _check(self, marks: Mapping[str, str]) -> None:
        mine = self.keeping.marks
        apart = [name for name in {**mine, **marks} if mine.get(name) != marks.get(name)]
        if apart:
            said = "; ".join(f"{name}: {marks.get(name)} then, {mine.get(name)} now" for name in apart)
            raise BadInput(
                f"{self.path} was left by another analysis ({said}). Resume with the same model, texts and "
                "settings, or start afresh (--overwrite)"
            )
