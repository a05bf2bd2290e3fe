"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headwise.analysis.errors import BadInput
from headwise.prune.folder.signals import uninterrupted

log = logging.getLogger("headwise")

# What tells a folder that headwise, or transformers, wrote: only such a one is ever replaced.
_OURS = ("environment.json", "plan.json", "evidence", "config.json", "comparison.html")

#: How a system says that it takes no more, and what that means.
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than allowed (ulimit -f)",
}


@contextlib.contextmanager
def new_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A working folder beside `target`, renamed to it when the block ends well, removed when it does not.

    Raises:
        BadInput: if the target exists and `overwrite` was not asked for, the place cannot be written, or
            the disk is full.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with new_folder(Path(place) / "out") as work:
    ...         _ = (work / "a.txt").write_text("a")
    ...     sorted(p.name for p in Path(place).rglob("*"))
    ['a.txt', 'out']
    """
    target = settled(target)
    check_free(target, overwrite=overwrite)
    with way_to(target), _beside(target) as work:
        yield work


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    with told(target):
        # A name of its own: two writers of one target must not clear each other's work away.
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        work.chmod(0o777 & ~_umask())
    try:
        with told(target):
            yield work
            publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A path in a folder of its own; the file and what is put beside it go to their places when the block ends well.

    Raises:
        BadInput: if the place cannot be written, or the disk is full.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with new_file(Path(place) / "a.txt") as path:
    ...         _ = path.write_text("a")
    ...     [path.name for path in Path(place).iterdir()]
    ['a.txt']
    """
    with told(target), tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
        yield Path(place) / target.name
        for made in sorted(Path(place).iterdir(), key=lambda made: made.name == target.name):
            made.replace(target.parent / made.name)


def settled(target: str | Path) -> Path:
    """An output folder as an absolute path.

    Raises:
        BadInput: if it is the current folder or one that the current folder is in.

    >>> settled("runs/../out") == Path.cwd() / "out"
    True
    """
    # Not `resolve`: a link to a folder stays the name that the user chose.
    path = Path(os.path.abspath(target))  # noqa: PTH100
    here = Path.cwd()
    if path == here or path in here.parents:
        raise BadInput(f"{target} is the folder you are in, or above it; choose an output folder of its own")
    return path


def check_free(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists, unless it may be overwritten.

    Raises:
        BadInput: with what to do about it.
    """
    if target.exists() and not target.is_dir():
        raise BadInput(f"{target} is a file; choose an output folder")
    if target.exists() and not overwrite:
        raise BadInput(
            f"{target} exists and is left as it is; choose another output folder, or say --overwrite (overwrite=True)"
        )
    if target.exists() and any(target.iterdir()) and not any((target / name).exists() for name in _OURS):
        raise BadInput(
            f"{target} holds neither a run nor a checkpoint, so it is not overwritten; choose another output folder"
        )


def check_place(target: Path, model: str | Path | None = None) -> None:
    """Refuse a target inside a run's folder, or one that holds the model that is about to be read.

    Args:
        target: as `settled` gives it.
        model: hub id or folder.

    Raises:
        BadInput: with what to do about it.

    >>> check_place(Path("runs/new").absolute(), "bert-base-uncased")
    """
    around = next((folder for folder in target.parents if is_run(folder)), None)
    if around is not None:
        raise BadInput(f"{target} lies inside {around}, a run's own folder; choose an output folder outside of it")
    if model is None or not target.exists() or not Path(model).expanduser().exists():
        return
    source, place = Path(model).expanduser().resolve(), target.resolve()
    if place == source or place in source.parents:
        raise BadInput(f"{target} holds the model that is read ({model}), so it is not replaced; choose another folder")


def check_target(target: str | Path, model: str | Path | None, *, overwrite: bool) -> None:
    """Return if what is made of a model can go there: `check_place` and `check_free`, before anything is loaded.

    Raises:
        BadInput: with what to do about it.

    >>> check_target("runs/new", "bert-base-uncased", overwrite=False)
    """
    check_place(settled(target), model)
    check_free(Path(target), overwrite=overwrite)


def is_run(folder: Path) -> bool:
    """Whether a run, an analysis or a sweep is in a folder, finished or not."""
    if folder.name.endswith(".partial") and (folder / ".lock").exists():
        return True
    described = (folder / "environment.json").exists()
    return described and any((folder / name).exists() for name in ("recipe.yaml", "evidence", "sweep.json"))


@contextlib.contextmanager
def way_to(folder: Path) -> Iterator[None]:
    """The folders above `folder` exist inside the block; those that it made are gone again if it fails.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with contextlib.suppress(ValueError), way_to(Path(place) / "a" / "b" / "c"):
    ...         raise ValueError((Path(place) / "a" / "b").is_dir())
    ...     list(Path(place).iterdir())
    []
    """
    made = [above for above in folder.parents if not above.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for above in made:
            # What somebody else has begun there meanwhile stays.
            with contextlib.suppress(OSError):
                above.rmdir()
        raise


def publish(work: Path, target: Path) -> None:
    """Rename a finished working folder to its target; an old target goes only after the new one stands."""
    if not target.exists():
        work.rename(target)
        return
    # A name that nobody has: `<target>.old` may be a copy that somebody keeps.
    aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".old", dir=target.parent))
    aside.rmdir()
    with uninterrupted():
        # Beside, not into another folder, which a folder that is read-only does not take part in.
        target.rename(aside)
        try:
            work.rename(target)
        except OSError:
            aside.rename(target)
            raise
    if aside.is_symlink():
        aside.unlink()
        return
    shutil.rmtree(aside, ignore_errors=True)
    if aside.exists():
        log.warning(
            "%s, which was replaced, cannot be deleted: part of it belongs to somebody else or is read-only", aside
        )


@contextlib.contextmanager
def told(target: Path) -> Iterator[None]:
    """Say what a failing disk means instead of showing a traceback."""
    try:
        yield
    except OSError as error:
        if out_of_room(error):
            raise _full(target, error) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise BadInput(f"{target} cannot be written: {error.strerror}") from error
        raise


@contextlib.contextmanager
def space_told(target: Path) -> Iterator[None]:
    """Say that the disk takes no more, by whatever way a library tells it: safetensors does so in words alone.

    Other failures pass; files that are read inside the block may have their own.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if out_of_room(error):
            raise _full(target, error) from error
        raise


def out_of_room(error: BaseException) -> str:
    """What a system says that takes no more: the disk or a quota is full, or a file too large; "" for other errors.

    >>> out_of_room(RuntimeError("I/O error: No space left on device (os error 28)")), out_of_room(OSError(2, "none"))
    ('the disk is full', '')
    """
    number, said = getattr(error, "errno", None), str(error)[:2000]
    return next((words for code, words in _NO_ROOM.items() if number == code or os.strerror(code) in said), "")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _full(target: Path, error: BaseException) -> BadInput:
    return BadInput(f"no space left for {target}: {out_of_room(error)}; nothing was kept there")
