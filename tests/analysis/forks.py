"""Several real processes that share an analysis, forked from the test's own so that nothing is imported anew."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def in_processes(count: int, work: Callable[[Path], Any], folder: Path, seconds: float = 120) -> list[int]:
    """The exit codes of `count` processes that call `work` with a folder of their own, joined by gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def begin(rank: int) -> None:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        torch.set_num_threads(1)
        mine = folder / str(rank)
        mine.mkdir(parents=True, exist_ok=True)
        work(mine)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=begin, args=(rank,)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
    return [int(process.exitcode or 0) for process in processes]
