"""Priced: what removals from a block cost, looked up first; the matrices behind it are made where they are wanted."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headwise.prune.importance.repair_cost import RepairCost

#: Bytes of matrices that are kept at hand over all blocks: those of small models all, of large ones one block's.
HELD = 256 * 2**20
#: Removals from a block after which prices are remembered; a search may try many more.
REMEMBERED = 1024

#: Units that are gone, in their order.
Gone = tuple[tuple[int, ...], ...]


@dataclass
class Shelf:
    """The matrices that were used last, as many as fit, at least one block's.

    Attributes:
        room: bytes for all of them.
    """

    room: int = HELD
    _there: OrderedDict[tuple[str, Gone], RepairCost] = field(default_factory=OrderedDict)
    _taken: int = 0

    def get(self, key: tuple[str, Gone], make: Callable[[], RepairCost]) -> RepairCost:
        """What is there by a key, or what `make` returns, which then is there.

        >>> shelf = Shelf(room=1)
        >>> for name in ("0", "1", "0"):
        ...     _ = shelf.get((name, ()), lambda: print("made") or RepairCost(np.eye(2), np.eye(2), {}))
        made
        made
        made
        """
        found = self._there.get(key)
        if found is not None:
            self._there.move_to_end(key)
            return found
        found = make()
        self._there[key] = found
        self._taken += found.bytes
        while len(self._there) > 1 and self._taken > self.room:
            self._taken -= self._there.popitem(last=False)[1].bytes
        return found


class Priced:
    """The costs inside one block while heads leave it, each worked out once whichever selection asks.

    Args:
        name: of the block.
        first: makes its matrices with nothing gone.
        known: prices that were worked out before: what is gone -> unit -> cost; filled in.
        shelf: where matrices are kept.
    """

    def __init__(
        self, name: str, first: Callable[[], RepairCost], known: dict[Gone, dict[tuple[int, ...], float]], shelf: Shelf
    ) -> None:
        self._name, self._first, self._known, self._shelf = name, first, known, shelf
        self._gone: Gone = ()

    def costs(self, units: Sequence[tuple[int, ...]]) -> np.ndarray:
        """What each unit adds to the error after repair, shape [unit].

        >>> first = lambda: print("made") or RepairCost(np.eye(1), np.eye(1), {0: np.array([0])}, ridge=1e-12)
        >>> known = {}
        >>> [Priced("0", first, known, Shelf()).costs([(0,)]).round(6).tolist() for _ in range(2)]
        made
        [[1.0], [1.0]]
        """
        prices = self._known.get(self._gone, {})
        asked = [unit for unit in units if unit not in prices]
        if asked:
            found = self._at(self._gone).costs(asked).tolist()
            prices = prices | dict(zip(asked, found, strict=True))
            if len(self._known) < REMEMBERED:
                self._known[self._gone] = prices
        return np.array([prices[unit] for unit in units])

    def remove(self, unit: tuple[int, ...]) -> None:
        """Let the unit go; nothing is computed before a price is asked that nobody knows."""
        self._gone = (*self._gone, unit)

    def _at(self, gone: Gone) -> RepairCost:
        def without() -> RepairCost:
            # Its matrices are replaced, not changed, so the one before stays what it is.
            state = copy.copy(self._at(gone[:-1]))
            state.remove(gone[-1])
            return state

        return self._shelf.get((self._name, gone), without if gone else self._first)
