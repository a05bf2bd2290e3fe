"""Reader: the tokenizer or processor of a checkpoint, saved as it was before anybody used it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = "tokenizer.json"
# What a call is told – cut to this length, fill up to that – stays in a fast tokenizer, and is written with it.
_OF_A_CALL = ("truncation", "padding")


def save_reader(reader: Any, folder: Path, inside: str = "") -> None:
    """Write a tokenizer or processor into a folder, in which the dense folder's own files may lie already.

    Engines that read `tokenizer.json` by themselves keep to the lengths in it: texts would be cut to those of a run. It
    says what the file says that the tokenizer was read from, and nothing of lengths where there is none.

    Args:
        reader: a tokenizer or processor.
        folder: where to.
        inside: the sub-folder that model and tokenizer were read from, of which a tokenizer says nothing.
    """
    tokenizer = getattr(reader, "tokenizer", reader)
    own = Path(getattr(tokenizer, "name_or_path", "") or folder, inside, _FILE)
    said = _read(own if own.is_file() else folder / _FILE)
    reader.save_pretrained(folder)
    written = _read(folder / _FILE)
    lengths = {name: said.get(name) for name in _OF_A_CALL if name in written}
    if any(written[name] != value for name, value in lengths.items()):
        text = json.dumps({**written, **lengths}, indent=2, ensure_ascii=False)
        (folder / _FILE).write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
