"""Clocks: seconds as a model's device counts them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def clock_of(model: nn.Module) -> Callable[[], float]:
    """A clock for what a model does: CUDA events where it runs on a GPU, else the processor's.

    An event is recorded by the GPU when it comes to it, so that two of them tell how long the work between them took
    there, without the time that the processor needs to hear of it.

    >>> clock_of(nn.Linear(1, 1)) is time.perf_counter
    True
    """
    device = next(model.parameters()).device
    return EventClock(device) if device.type == "cuda" else time.perf_counter


class EventClock:
    """Seconds since it was made, counted by a GPU's events.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._last = self._event()

    def __call__(self) -> float:
        """Wait for the work that was handed to the GPU, and tell the time then."""
        now = self._event()
        # An event tells milliseconds as a 32-bit number: from one to the next they are exact enough.
        self._seconds += self._last.elapsed_time(now) / 1e3
        self._last = now
        return self._seconds

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        event.synchronize()
        return event
