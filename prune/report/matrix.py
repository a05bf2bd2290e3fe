"""The similarity matrix as a picture, with its tree beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headwise.analysis.errors import named
from headwise.prune.report.colours import DARK, LIGHT, Rgb, hexadecimal, ramp
from headwise.prune.report.document import Head, Similarity

SIDE = 620.0
TREE = 130.0
TOP = 20.0
LABELLED = 80
LEVELS = 127


@dataclass(frozen=True)
class Block:
    """A group of interchangeable heads on the diagonal."""

    x: float
    y: float
    size: float
    title: str


@dataclass(frozen=True)
class MatrixDrawing:
    """Geometry of the picture, in units of the SVG."""

    light: str
    dark: str
    width: float
    height: float
    left: float
    top: float
    side: float
    pitch: float
    branches: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]
    threshold: float | None
    labels: tuple[tuple[float, str, bool], ...]
    strip: tuple[tuple[float, bool], ...]
    strip_x: float
    blocks: tuple[Block, ...]
    names: tuple[str, ...]
    values: str
    light_stops: tuple[str, ...]
    dark_stops: tuple[str, ...]
    unknown: bool
    """Whether some pairs have no number."""


def draw_matrix(similarity: Similarity, heads: Sequence[Head]) -> MatrixDrawing | None:
    """The drawing, or None where the page lists pairs only, or no head is left."""
    order = list(similarity.order)
    if not similarity.drawn or similarity.matrix is None or not order:
        return None
    ordered = similarity.matrix[np.ix_(order, order)]
    count = len(order)
    labelled = count <= LABELLED
    pitch = SIDE / count
    # Letters of this size are some 4 units wide.
    label_width = max(34.0, 8 + 4.3 * max(len(heads[i].label) for i in order)) if labelled else 0.0
    has_removed = any(not head.kept for head in heads)
    strip = 10.0 if has_removed else 0.0
    tree = TREE if similarity.linkage else 0.0
    left = tree + label_width + strip + 4
    centres = [TOP + (i + 0.5) * pitch for i in range(count)]
    branches, ticks, threshold = _tree(similarity, order, pitch, tree)
    return MatrixDrawing(
        light=picture(ordered, LIGHT),
        dark=picture(ordered, DARK),
        width=left + SIDE + 2,
        height=TOP + SIDE + 2,
        left=left,
        top=TOP,
        side=SIDE,
        pitch=pitch,
        branches=branches,
        ticks=ticks,
        threshold=threshold,
        labels=tuple((y, heads[i].label, heads[i].kept) for y, i in zip(centres, order, strict=True))
        if labelled
        else (),
        strip=_runs([heads[i].kept for i in order], pitch) if has_removed else (),
        strip_x=tree + label_width + 2,
        blocks=tuple(
            Block(left + c.start * pitch, TOP + c.start * pitch, len(c.members) * pitch, _members(c.members))
            for c in similarity.clusters
        ),
        names=tuple(heads[i].label for i in order),
        values=_packed(ordered),
        light_stops=_stops(LIGHT),
        dark_stops=_stops(DARK),
        unknown=bool(np.isnan(ordered).any()),
    )


def picture(matrix: np.ndarray, ends: tuple[Rgb, Rgb, Rgb]) -> str:
    """The matrix as a PNG data address: one pixel a pair, -1 to 1 on the diverging ramp, grey where unknown.

    >>> picture(np.eye(2), LIGHT)[:26]
    'data:image/png;base64,iVBO'
    """
    from PIL import Image

    unknown = ~np.isfinite(matrix)
    levels = np.rint((np.clip(np.nan_to_num(matrix), -1, 1) + 1) / 2 * (LEVELS - 1)).astype(np.uint8)
    levels[unknown] = LEVELS
    image = Image.fromarray(levels, mode="P")
    image.putpalette([*ramp(ends, LEVELS).reshape(-1).tolist(), 128, 128, 128])
    memory = io.BytesIO()
    image.save(memory, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(memory.getvalue()).decode("ascii")


def _packed(matrix: np.ndarray) -> str:
    """Hundredths as signed bytes, row by row above the diagonal: what the pointer reads out."""
    rows, columns = np.triu_indices(len(matrix), k=1)
    known = np.clip(np.nan_to_num(matrix[rows, columns], nan=1.27), -1, 1.27)
    return base64.b64encode(np.rint(100 * known).astype(np.int8).tobytes()).decode("ascii")


def _stops(ends: tuple[Rgb, Rgb, Rgb]) -> tuple[str, ...]:
    return tuple(hexadecimal(np.array(colour)) for colour in ends)


def _members(labels: Sequence[str], most: int = 40) -> str:
    return f"{len(labels)} like heads: {named(labels, most)}"


def _runs(kept: Sequence[bool], pitch: float) -> tuple[tuple[float, bool], ...]:
    return tuple((round(TOP + i * pitch, 2), value) for i, value in enumerate(kept))


def _tree(
    similarity: Similarity, order: Sequence[int], pitch: float, width: float
) -> tuple[tuple[str, ...], tuple[tuple[float, str], ...], float | None]:
    """Branches as SVG paths, root at the left; ticks of the distance axis; where it was cut into groups."""
    if not similarity.linkage:
        return (), (), None
    highest = max(joint[2] for joint in similarity.linkage) or 1.0
    scale = (width - 12) / highest
    row = {head: i for i, head in enumerate(order)}
    heights: dict[int, tuple[float, float]] = {
        leaf: (TOP + (row[head] + 0.5) * pitch, 0.0) for leaf, head in enumerate(similarity.present)
    }
    branches = []
    for step, (first, second, distance, _) in enumerate(similarity.linkage):
        (y1, d1), (y2, d2) = heights.pop(int(first)), heights.pop(int(second))
        x, x1, x2 = (round(width - scale * d, 1) for d in (distance, d1, d2))
        branches.append(f"M{x1} {y1:.1f}H{x}V{y2:.1f}H{x2}")
        heights[len(order) + step] = ((y1 + y2) / 2, distance)
    step_size = _round_step(highest)
    ticks = tuple(
        (round(width - scale * value, 1), f"{value:g}") for value in np.arange(0, highest + 1e-9, step_size).tolist()
    )
    cut = None if similarity.threshold is None else 1 - similarity.threshold
    return tuple(branches), ticks, None if cut is None or cut > highest else round(width - scale * cut, 1)


def _round_step(highest: float) -> float:
    # Four steps at most: the axis has room for five numbers.
    raw = highest / 1.8
    size = 10.0 ** np.floor(np.log10(raw))
    return float(next((m * size for m in (5, 2, 1) if m * size <= raw), size))
