"""Requests to end: all of them arrive as an interruption, and none in the middle of what cannot be taken back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: Sent by schedulers, `timeout`, `docker stop` and a terminal that is closed.
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Inside the block a request to end raises KeyboardInterrupt as Ctrl-C does, so that work is kept or cleared away.

    Once: what follows the first is left unheard, since several are usual and the block is ending already. Signals that
    somebody else handles or ignores (`nohup`) stay theirs. Outside of the main thread nothing changes.

    >>> with interrupting():
    ...     try:
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         print("interrupted")
    interrupted
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [number for number in _ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    process = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this one has nothing to keep
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for one in mine:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """An interruption inside the block waits for its end; processes started in it do not hear Ctrl-C at all.

    >>> try:
    ...     with interrupting(), uninterrupted():
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    done
    interrupted
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for number in (signal.SIGINT, *_ENDINGS):
        if callable(signal.getsignal(number)):
            handlers[number] = signal.signal(number, lambda *arrived: waiting.append(arrived))
    # Inherited by what is started, which would else complain while it has not come to ignore it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if waiting:
            number, frame = waiting[0]
            handlers[number](number, frame)
