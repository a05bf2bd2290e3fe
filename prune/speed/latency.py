"""Latency: how long a model's forward pass takes here with each number of heads in each site, as a table."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.optimize import nnls

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import blocks_of
from headwise.prune.selection.meters import Table

log = logging.getLogger("headwise")

Milliseconds = Annotated[float, Field(ge=0)]


class Timed(BaseModel):
    """One way the model was timed: so many heads in these sites, all others as they are.

    >>> Timed(heads={"0": 3, "1": 3}, milliseconds=4.5).milliseconds
    4.5
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    heads: dict[str, Annotated[int, Field(ge=1)]]
    milliseconds: Annotated[float, Field(gt=0)]


class Latency(BaseModel):
    """A latency table of one machine: the same table gives the same plan.

    The time of a forward pass is taken for what it takes with few heads plus what every site's further heads add;
    what a head adds is piecewise linear in their number, never negative, and the same in sites of one shape.

    Attributes:
        setting: what the table holds for: texts a batch, tokens, unit, device, dtype, threads, kernel, versions,
            processor and a hash of the weights.
        total: milliseconds of the model as it is.
        rows: block -> milliseconds that 0, 1, 2, … heads add to what one head takes.
        measured: what was timed.
        off: the largest part by which the fit misses a measured time.
        steady: whether times stood still before they were taken.

    >>> Latency(setting={"batch": 1, "length": 8}, total=9.0, rows={"0": (0.0, 0.0, 1.0)}, measured=()).total
    9.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True,
                              allow_inf_nan=False)  # fmt: skip

    schema_version: Literal[1] = Field(1, alias="schema")
    setting: dict[str, str | int | None]
    total: Annotated[float, Field(gt=0)]
    rows: dict[str, tuple[Milliseconds, ...]]
    measured: tuple[Timed, ...]
    off: float = 0.0
    steady: bool = True
    taken: str = ""

    @property
    def where(self) -> str:
        """The setting in words.

        >>> Latency(setting={"batch": 1, "length": 8}, total=9.0, rows={}, measured=()).where
        'batch 1 x 8 tokens'
        """
        return f"batch {self.setting['batch']} x {self.setting['length']} tokens"

    def meter(self) -> Table:
        """The table as what a budget is counted with.

        >>> Latency(setting={}, total=9.0, rows={"0": (0.0, 0.0, 1.0)}, measured=()).meter().total
        9.0
        """
        return Table("milliseconds", self.total, self.rows)

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON and return the path.

        >>> import tempfile
        >>> table = Latency(setting={}, total=9.0, rows={"0": (0.0, 0.0, 1.0)}, measured=())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Latency.load(table.save(Path(folder) / "latency.json")) == table
        True
        """
        path = Path(path)
        path.write_text(json.dumps(self.model_dump(mode="json", by_alias=True), indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Latency:
        """Read a table.

        Raises:
            BadInput: it cannot be read, or is no latency table.

        >>> Latency.load("/no-such-table")
        Traceback (most recent call last):
        headwise.analysis.errors.BadInput: /no-such-table: cannot read the latency table (No such file or directory)
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise BadInput(f"{path}: cannot read the latency table ({error.strerror})") from error
        except (UnicodeDecodeError, ValidationError) as error:
            found = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "not UTF-8"
            raise BadInput(f"{path}: no latency table ({found}); leave reach.table out to have it measured") from error

    def check(
        self, sites: Mapping[str, Site], setting: Mapping[str, str | int | None], where: str = "the latency table"
    ) -> None:
        """Return if the table is of this model in this setting; warn if it is of another machine.

        Raises:
            BadInput: the table is of another model, batch, length or unit.

        >>> table = Latency(setting={"batch": 1}, total=9.0, rows={"0": (0.0, 0.0, 1.0)}, measured=())
        >>> table.check({"0": Site("0", "attn", "attn.o", 2, 2, 8)}, {"batch": 8})
        Traceback (most recent call last):
        headwise.analysis.errors.BadInput: the latency table is for batch 1, asked is 8; leave reach.table out
        """
        for name in ("model", "batch", "length", "unit"):
            if name in setting and self.setting.get(name) != setting[name]:
                raise BadInput(
                    f"{where} is for {name} {self.setting.get(name)}, asked is {setting[name]}; leave reach.table out"
                )
        for name, block in blocks_of(sites).items():
            if len(self.rows.get(name, ())) != block.heads + 1:
                raise BadInput(f"{where} does not fit site {name!r} and its {block.heads} heads; leave reach.table out")
        other = [name for name, value in setting.items() if self.setting.get(name) != value]
        if other:
            log.warning("the latency table was taken with another %s: its times may not hold here", ", ".join(other))


def fitted(
    total: float,
    measured: Sequence[Timed],
    now: Mapping[str, int],
    alike: Mapping[str, str],
    heads: Mapping[str, int],
) -> tuple[dict[str, tuple[float, ...]], float, float]:
    """Rows, total and largest miss of the table that comes closest to measured times.

    A forward pass with k_b heads in block b takes c + sum_b f(k_b). f has a kink at every number of heads that was
    measured and rises between them, or stays; blocks that are alike share it. Non-negative least squares in parts
    of the measured times (Lawson & Hanson, 1974).

    Args:
        total: milliseconds of the model as it is.
        measured: other ways it was timed.
        now: block -> heads that it has.
        alike: block -> name of its shape.
        heads: block -> heads of the dense block.

    >>> ways = [Timed(heads={"0": 1}, milliseconds=6.0), Timed(heads={"0": 2}, milliseconds=7.0)]
    >>> rows, total, off = fitted(10.0, ways, {"0": 4}, {"0": "a"}, {"0": 4})
    >>> [round(part, 6) for part in rows["0"]], round(total, 6)
    ([0.0, 0.0, 1.0, 2.5, 4.0], 10.0)
    """
    knots: dict[str, list[int]] = {}
    for block, shape in alike.items():
        seen = {way.heads[block] for way in measured if block in way.heads}
        knots[shape] = sorted({*knots.get(shape, ()), *seen, max(now[block], 1)})
    columns = [(shape, low, high) for shape, at in knots.items() for low, high in pairwise(at)]

    def part(count: int, low: int, high: int) -> float:
        return float(np.clip((count - low) / (high - low), 0, 1))

    def terms(counts: Mapping[str, int]) -> list[float]:
        return [
            1.0,
            *(
                sum(part(counts[b], low, high) for b, of in alike.items() if of == shape)
                for shape, low, high in columns
            ),
        ]

    ways = [(dict(now), total)]
    ways += [({**now, **way.heads}, way.milliseconds) for way in measured]
    matrix, times = np.array([terms(counts) for counts, _ in ways]), np.array([time for _, time in ways])
    found = nnls(matrix / times[:, None], np.ones(len(times)))[0]
    said = matrix @ found
    rises = dict(zip(columns, found[1:], strict=True))

    def row(block: str) -> tuple[float, ...]:
        mine = [(low, high, rise) for (shape, low, high), rise in rises.items() if shape == alike[block]]
        # More heads than there are now were never timed: an earlier cut took them, and its gain is in the total.
        return tuple(
            float(sum(rise * part(min(count, now[block]), low, high) for low, high, rise in mine))
            for count in range(heads[block] + 1)
        )

    return {block: row(block) for block in alike}, float(said[0]), float(np.max(np.abs(said / times - 1)))
