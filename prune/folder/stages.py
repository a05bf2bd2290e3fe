"""Stages: a run's folder while it is being made – locked, kept for resuming, and whole when it appears."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from headwise.analysis.errors import BadInput
from headwise.prune.folder import check_free, check_place, is_run, publish, settled, told, way_to

log = logging.getLogger("headwise")

#: Where an analysis keeps its sums while it goes on.
SUMS = "sums"
# Files that say what a run is; without anything beyond them there is nothing to resume.
_BEGINNING = {".lock", "recipe.yaml", "environment.json", "latency.json"}

_lasting: ContextVar[bool] = ContextVar("lasting", default=True)


@contextlib.contextmanager
def passing() -> Iterator[None]:
    """Inside the block nothing that is broken off stays: its folder goes away anyway, so nobody is sent there.

    >>> with passing():
    ...     _lasting.get()
    False
    """
    token = _lasting.set(False)
    try:
        yield
    finally:
        _lasting.reset(token)


class Undecided(BadInput):
    """The recipe cannot be met by this model and these texts; with another budget, what was measured still serves."""


def _new(was: str, now: str) -> str:
    """The first lines of a text that were not in it before."""
    old = set(was.splitlines())
    lines = [line.strip() for line in now.splitlines() if line not in old] or ["it says less"]
    return "; ".join([*lines[:2], *(["and more"] if len(lines) > 2 else [])])


class _Saveable(Protocol):
    def save(self, folder: Path) -> Any: ...


class Stages:
    """The working folder `<target>.partial`, under a lock, renamed to the target when the block ends well.

    Each stage writes one file or folder, in one step; a stage whose result is there already is not made
    again. When the block fails, the working folder stays if there is anything worth resuming.

    Args:
        target: the run's folder.
        overwrite: replace an existing target (when the new one is whole), and an unfinished one.
        resume: go on with what an interrupted run left.

    Raises:
        BadInput: if the target exists, another run works on it, or an unfinished one is there and neither
            `resume` nor `overwrite` was asked for.
    """

    def __init__(self, target: Path, *, overwrite: bool = False, resume: bool = False) -> None:
        self.target, self.overwrite, self.resume = settled(target), overwrite, resume
        self.work = self.target.with_name(f"{self.target.name}.partial")
        self._lock: IO[str] | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Stages:
        if self.target.name.endswith(".partial") and (self.target / ".lock").exists():
            own = self.target.with_name(self.target.name.removesuffix(".partial"))
            raise BadInput(f"{self.target} is what an unfinished run has kept; resume it by its own name, {own}")
        if self.resume and not self.overwrite and is_run(self.target) and not self.work.exists():
            if (self.target / ".lock").exists():
                raise BadInput(
                    f"{self.target} is an unfinished run under another name than it had; rename it to {self.work}, then resume"
                )
            raise BadInput(
                f"{self.target} is finished, so there is nothing to resume; what is asked for now, if it is another recipe "
                "or budget, needs an output folder of its own, or --overwrite"
            )
        check_free(self.target, overwrite=self.overwrite)
        check_place(self.target)
        with contextlib.ExitStack() as entered:
            with told(self.target):
                entered.enter_context(way_to(self.work))
                self._take()
            self._entered = entered.pop_all()
        return self

    def _take(self) -> None:
        there = self.work.exists()
        self.work.mkdir(exist_ok=True)
        self._lock = self._locked()
        if there and not self.resume:
            if not self.overwrite and self._begun():
                self._unlock()
                raise BadInput(
                    f"{self.work} holds an unfinished run; continue it with --resume, or start afresh with --overwrite"
                )
            self._clear()
        elif self.resume and not there:
            self._unlock()
            shutil.rmtree(self.work, ignore_errors=True)
            raise BadInput(f"there is no unfinished run to resume: {self.work} does not exist")
        else:
            self._tidy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with told(self.target):
                # The lock goes last: until the folder has its name, nobody else may begin here.
                publish(self.work, self.target)
                (self.target / ".lock").unlink(missing_ok=True)
        elif _lasting.get() and self._begun():
            also = ", also with another budget, reach or keep-rule" if issubclass(kind, Undecided) else ""
            log.warning("the finished stages are kept in %s; --resume goes on from there%s", self.work, also)
        else:
            shutil.rmtree(self.work, ignore_errors=True)
        self._unlock()
        self._entered.__exit__(kind, error, trace)

    def text(self, name: str, make: Callable[[], str], near: Callable[[str], bool] = lambda _: False) -> str:
        """A text file of the run; one that an interrupted run left must say the same.

        Args:
            name: of the file.
            make: gives the text.
            near: whether what an interrupted run left may be replaced by it, since no stage depends on the difference.

        Raises:
            BadInput: if the file is there and says something else.
        """
        path, made = self.work / name, make()
        was = path.read_text(encoding="utf-8") if path.exists() else made
        if was != made and not near(was):
            raise BadInput(
                f"{path} differs from what is asked now ({_new(was, made)}); resume with the same recipe and settings, "
                "choose another output folder, or --overwrite"
            )
        self._write(path, made)
        return made

    def json(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """A JSON file of the run, made unless it is there.

        Raises:
            BadInput: if the file is there and is no JSON.
        """
        path = self.work / name
        if not path.exists():
            self.replace_json(name, make())
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is broken ({error}); delete it to have it made again") from error
        if not isinstance(found, dict):
            raise BadInput(f"{path} holds a {type(found).__name__}, not an object; delete it to have it made again")
        return found

    def replace_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, in one step, also over an earlier one."""
        self._write(self.work / name, json.dumps(content, indent=2, default=str, allow_nan=True) + "\n")

    def saved(self, name: str, make: Callable[[], _Saveable], load: Any) -> Any:
        """A file or folder of the run: what `make` returns is saved there unless it is there; read by `load.load`."""
        path = self.work / name
        if not path.exists():
            made, fresh = make(), self.work / f"{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            with told(self.target):
                made.save(fresh)
                fresh.rename(path)
        return load.load(path)

    def evidence(self, look: Callable[[Path], _Saveable], load: Any) -> Any:
        """The evidence of the run: looked for unless it is there, from the sums that an interrupted look left.

        Args:
            look: gives the evidence; its sums are kept in the folder that it is given, until they are not needed.
            load: `Evidence`.
        """
        sums = self.work / SUMS
        found = self.saved("evidence", lambda: look(sums), load)
        shutil.rmtree(sums, ignore_errors=True)
        return found

    def replaced(self, name: str, was: Any, now: Any) -> Any:
        """A folder of the run, written anew where what it holds is not what it was."""
        if now is not was:
            path, fresh = self.work / name, self.work / f"{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            with told(self.target):
                now.save(fresh)
                shutil.rmtree(path)
                fresh.rename(path)
        return now

    def _write(self, path: Path, content: str) -> None:
        fresh = path.with_name(f"{path.name}.new")
        with told(self.target):
            fresh.write_text(content, encoding="utf-8")
            fresh.replace(path)

    def _begun(self) -> bool:
        return any(path.name not in _BEGINNING and not path.name.endswith(".new") for path in self.work.iterdir())

    def _clear(self) -> None:
        for path in self.work.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _tidy(self) -> None:
        """Clear away what a write that was killed left half made."""
        for path in list(self.work.rglob("*")):
            if path.name.endswith(".new") or (path.name.startswith(".") and path.name.endswith(".partial")):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _locked(self) -> IO[str]:
        lock = (self.work / ".lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise BadInput(f"another run is working on {self.work}; choose another output folder") from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
