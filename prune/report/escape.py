"""Text from data stays text: in HTML, in Markdown, and with every control character visible."""

from __future__ import annotations

import re

# C0 and C1 controls but tab and newline, line separators, and marks that reorder or hide text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udfff]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$^])|^([-+=])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Verbatim(str):
    """Markdown that the template made itself, not to be escaped again."""

    __slots__ = ()


def visible(text: str) -> str:
    r"""`text` with its control characters shown instead of obeyed; newlines and tabs stay.

    >>> visible("red: \x1b[31m")
    'red: ␛[31m'
    """
    return _CONTROLS.sub(_shown, text)


def markdown(text: str) -> str:
    r"""`text` on one line, as Markdown that shows exactly that text.

    >>> markdown("a|b <i> *c*")
    'a\\|b &lt;i&gt; \\*c\\*'
    """
    line = re.sub(r"\s+", " ", visible(text)).strip()
    line = re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], line)
    line = _MARKDOWN.sub(r"\\\g<0>", line)
    # Addresses would become links by themselves.
    line = re.sub(r"://", r":\\/\\/", line)
    line = re.sub(r"(?i)\bwww\.", lambda found: found[0][:-1] + "\\.", line)
    return re.sub(r"^(\d+)\.(?= )", r"\1\\.", line)


def fenced(code: str, language: str = "") -> Verbatim:
    """A code block that its own content cannot close.

    >>> print(fenced("print(1)", "python"))
    ```python
    print(1)
    ```
    """
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return Verbatim(f"{fence}{language}\n{visible(code)}\n{fence}")


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"⟨U+{code:04X}⟩"
