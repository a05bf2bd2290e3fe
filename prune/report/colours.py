"""Colours and letters of roles, and the ramps of the similarity picture.

The role hues keep apart for the common kinds of colour blindness, and every role has a letter besides.
Each hue has a shade for light and one for dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headwise.prune.report.document import Head

Rgb = tuple[int, int, int]

# role: (letter, on light, on dark)
KNOWN = {
    "previous": ("P", "#0b63a5", "#5aa9ea"),
    "next": ("N", "#3f9fcf", "#8fd0f2"),
    "self": ("S", "#4a3f9f", "#9b93f0"),
    "window": ("W", "#12806f", "#3fc4ac"),
    "separator": ("X", "#d98a00", "#f2b13c"),
    "first-token": ("F", "#a86a1b", "#d9a05b"),
    "punctuation": ("U", "#c2568f", "#ec92c0"),
    "coreference": ("C", "#a11d44", "#f0647f"),
    "broad": ("B", "#73802a", "#b4c25a"),
}
SPARE = (
    ("#6b4a2f", "#c79f7d"), ("#8a3fa0", "#cf93e2"), ("#4d5b6b", "#a9b8c9"), ("#4f9a2e", "#97d978"), ("#d9603b", "#f5977a"),
    ("#1b2a6b", "#7f92ea"), ("#2b2f36", "#d5dae0"), ("#2f6b6b", "#7cc7c7"),
)  # fmt: skip

# Ends and middle of the diverging ramp (blue – nothing – orange), for light and for dark pages.
LIGHT: tuple[Rgb, Rgb, Rgb] = ((25, 88, 156), (250, 250, 248), (178, 70, 10))
DARK: tuple[Rgb, Rgb, Rgb] = ((122, 184, 245), (24, 26, 29), (250, 160, 84))


@dataclass(frozen=True)
class RoleColour:
    """How a role is drawn: its CSS class, letter and colours on light and dark pages."""

    role: str
    css: str
    letter: str
    light: str
    dark: str


def role_colours(roles: Iterable[str]) -> dict[str, RoleColour]:
    """A colour and a letter for every role, fixed for those that ship and in turn for others.

    >>> colours = role_colours(["previous", "my role"])
    >>> colours["previous"].letter, colours["my role"].letter, colours["my role"].css
    ('P', 'M', 'role-0')
    """
    found: dict[str, RoleColour] = {}
    names = sorted(set(roles))
    used = {KNOWN[name][0] for name in names if name in KNOWN}
    spare = 0
    for i, name in enumerate(names):
        if name in KNOWN:
            letter, light, dark = KNOWN[name]
        else:
            light, dark = SPARE[spare % len(SPARE)]
            spare += 1
            letter = next((c for c in name.upper() if c.isalnum() and c not in used), "•")
            used.add(letter)
        found[name] = RoleColour(name, f"role-{i}", letter, light, dark)
    return found


def shown_roles(heads: Iterable[Head]) -> dict[str, RoleColour]:
    """Colours of the roles that tiles show: those that stand furthest above chance in some head.

    There are more roles than colours that one can tell apart; few of them are shown.
    """
    return role_colours(head.role for head in heads if head.role)


def ramp(ends: tuple[Rgb, Rgb, Rgb], levels: int = 255) -> np.ndarray:
    """A diverging ramp as [levels, 3] bytes: low end, middle, high end.

    >>> ramp(LIGHT)[127].tolist(), ramp(LIGHT)[-1].tolist()
    ([250, 250, 248], [178, 70, 10])
    """
    low, middle, high = (np.array(colour, dtype=np.float64) for colour in ends)
    half = np.linspace(0, 1, levels // 2 + 1)[:, None]
    down = low + (middle - low) * half
    up = middle + (high - middle) * half
    colours: np.ndarray = np.rint(np.concatenate([down, up[1:]])).astype(np.uint8)
    return colours


def hexadecimal(colour: np.ndarray) -> str:
    """`#rrggbb`.

    >>> hexadecimal(np.array([255, 0, 16]))
    '#ff0010'
    """
    return "#" + "".join(f"{int(part):02x}" for part in colour)
