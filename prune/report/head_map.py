"""Where everything stands in the drawing of layers and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwise.prune.report.colours import RoleColour
from headwise.prune.report.document import Head
from headwise.prune.report.formats import fixed, number

WIDEST = 600
LARGEST, SMALLEST = 40, 13
STAGGER = 11.0
MARGIN_LEFT, MARGIN_TOP, MARGIN_END = 34.0, 22.0, 34.0


@dataclass(frozen=True)
class Cell:
    """One head: a full tile where it was kept, a small square where it was removed."""

    x: float
    y: float
    size: float
    css: str
    letter: str
    centre_x: float
    baseline: float
    title: str


@dataclass(frozen=True)
class Mark:
    """A number on an axis, or the number of heads left at its end."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class HeadMap:
    """The drawing of one stack."""

    title: str
    width: float
    height: float
    pitch: float
    across: str
    down: str
    slots: tuple[tuple[float, float], ...]
    cells: tuple[Cell, ...]
    columns: tuple[Mark, ...]
    rows: tuple[Mark, ...]
    left: tuple[Mark, ...]
    font: float


def head_maps(heads: Sequence[Head], colours: Mapping[str, RoleColour], score_name: str) -> tuple[HeadMap, ...]:
    """One drawing for each stack; the longer axis runs across the page.

    >>> drawing, = head_maps([Head("0", 0, "0.0", "", 0), Head("0", 1, "0.1", "", 0, kept=False)], {}, "")
    >>> [cell.size for cell in drawing.cells]
    [37.0, 12.8]
    """
    tracks = dict.fromkeys(head.track for head in heads)
    total = len(heads)
    return tuple(
        _head_map(track, [head for head in heads if head.track == track], colours, score_name, total)
        for track in tracks
    )


def _head_map(
    track: str, heads: Sequence[Head], colours: Mapping[str, RoleColour], score_name: str, total: int
) -> HeadMap:
    layers = sorted({head.layer for head in heads})
    widest = max(head.head for head in heads) + 1
    layers_across = len(layers) > 1.25 * widest
    across = len(layers) if layers_across else widest
    down = widest if layers_across else len(layers)
    pitch = float(max(SMALLEST, min(LARGEST, WIDEST // across)))
    place = {layer: i for i, layer in enumerate(layers)}
    spots = [(place[h.layer], h.head) if layers_across else (h.head, place[h.layer]) for h in heads]
    corners = [(MARGIN_LEFT + column * pitch, MARGIN_TOP + row * pitch) for column, row in spots]
    names = [str(layer) for layer in layers], [str(head) for head in range(widest)]
    column_names, row_names = names if layers_across else names[::-1]
    kept = {layer: sum(h.kept for h in heads if h.layer == layer) for layer in layers}
    ends = [f"{kept[layer]}" for layer in layers] if any(not h.kept for h in heads) else []
    width = MARGIN_LEFT + across * pitch + (0 if layers_across else MARGIN_END)
    # Numbers of two digits under narrow columns touch one another: every second one stands lower.
    crowded = layers_across and bool(ends) and pitch < 18
    height = MARGIN_TOP + down * pitch + (18 if layers_across and ends else 2) + (STAGGER if crowded else 0)
    step = 1 if pitch >= 18 else 2 if pitch >= 14 else 4
    middle = pitch / 2 + 4
    columns = [Mark(MARGIN_LEFT + (i + 0.5) * pitch, 14.0, column_names[i]) for i in range(0, across, step)]
    rows = [Mark(MARGIN_LEFT - 8, MARGIN_TOP + i * pitch + middle, row_names[i]) for i in range(0, down, step)]
    if layers_across:
        places = [height - 4 - (STAGGER if crowded and i % 2 == 0 else 0) for i in range(len(ends))]
        left = [Mark(MARGIN_LEFT + (i + 0.5) * pitch, places[i], text) for i, text in enumerate(ends)]
    else:
        left = [Mark(width - MARGIN_END + 10, MARGIN_TOP + i * pitch + middle, t) for i, t in enumerate(ends)]
    return HeadMap(
        title=track or "",
        width=width,
        height=height,
        pitch=pitch,
        across="layer" if layers_across else "head",
        down="head" if layers_across else "layer",
        slots=tuple((x + 1, y + 1) for (x, y), head in zip(corners, heads, strict=True) if not head.kept),
        cells=tuple(
            _cell(head, x, y, pitch, colours, title_of(head, score_name, total))
            for head, (x, y) in zip(heads, corners, strict=True)
        ),
        columns=tuple(columns),
        rows=tuple(rows),
        left=tuple(left),
        font=max(8.0, round(pitch * 0.36, 1)),
    )


def _cell(head: Head, x: float, y: float, pitch: float, colours: Mapping[str, RoleColour], title: str) -> Cell:
    colour = colours.get(head.role)
    size = pitch - 3 if head.kept else round(pitch * 0.32, 1)
    gap = (pitch - size) / 2
    shade = head.shade or 5
    css = f"{colour.css if colour else 'role-none'} s{shade}{'' if head.kept else ' gone'}"
    letter = colour.letter if colour and head.kept and pitch >= 18 else ""
    return Cell(
        x=round(x + gap, 1),
        y=round(y + gap, 1),
        size=size,
        css=css,
        letter=letter,
        centre_x=round(x + pitch / 2, 1),
        baseline=round(y + pitch / 2 + pitch * 0.13, 1),
        title=title,
    )


def title_of(head: Head, score_name: str, total: int) -> str:
    """What hovering over a head says.

    >>> title_of(Head("3", 1, "3.1", "", 3, kept=False, roles=("self",), reason="like 3.2"), "", 8).splitlines()
    ['head 3.1: removed', 'roles: self', 'like 3.2']
    """
    lines = [f"head {head.label}: {'kept' if head.kept else 'removed'}"]
    lines.append("roles: " + (", ".join(head.roles) or "none"))
    if head.score is not None:
        lines.append(f"{score_name}: {number(head.score)}, rank {head.rank} of {total}")
    if head.nearest:
        lines.append(f"most like {head.nearest} ({fixed(head.nearest_value)})")
    lines += [f"{name.replace('_', ' ')}: {number(value)}" for name, value in head.numbers.items()]
    if head.reason:
        lines.append(head.reason)
    return "\n".join(lines)
