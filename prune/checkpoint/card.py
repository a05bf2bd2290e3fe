"""The model card of a cut checkpoint: what is gone, how to load it, where it can be served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.prune.checkpoint.auto_class import auto_class
from headwise.prune.checkpoint.own_code import code_of


def card(model: Any, record: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The README.md of a checkpoint folder, in Markdown.

    Args:
        model: the cut model.
        record: its record of cut heads.
        facts: optional `accuracy` and `speed` dictionaries of the run, and the `base` model's name.
    """
    sites = record["sites"]
    total = sum(site["heads"] for site in sites.values())
    removed = sum(site["heads"] - len(site["kept"]) for site in sites.values())
    base = facts.get("base") or getattr(model.config, "_name_or_path", "") or type(model).__name__
    rows = "\n".join(
        f"| {name} | {site['heads']} | {_listed(sorted(set(range(site['heads'])) - set(site['kept'])))} |"
        for name, site in sites.items()
    )
    figures = "".join(f"- {line}\n" for line in facts.get("figures", ()))
    auto, own = auto_class(model), bool(code_of(model))
    needs = "only the model's own code runs" if own else "no flag is needed and no code of this folder runs"
    return f"""---
library_name: transformers
tags: [headwise, pruned]
---

# {_plain(_called(str(base)))}, {removed} of {total} attention heads removed

{figures}
The weights of these heads are gone; heads are counted as in the dense model.

| site | heads | removed |
|---|---|---|
{rows}

## Load

With [headwise](https://pypi.org/project/headwise/) installed, {needs}:

```python
from headwise.prune import load

model = load("path/to/this/folder"{", trust_remote_code=True" if own else ""})
```

Without headwise, with the code in `modeling_headwise.py`:

```python
from transformers import {auto}

model = {auto}.from_pretrained("path/to/this/folder", trust_remote_code=True)
```

A plain `from_pretrained` without that flag stops with a size mismatch. Never answer it with
`ignore_mismatched_sizes=True`: that loads the pruned layers with RANDOM weights and reports no error.
"""


def _called(base: str) -> str:
    """A hub id as it is; of a folder its own name, since where it lay concerns nobody who reads the card."""
    folder = Path(base).expanduser()
    return folder.resolve().name if folder.is_dir() else base


def _listed(heads: list[int]) -> str:
    return ", ".join(map(str, heads)) or "–"


def _plain(text: object) -> str:
    """A name as one line of plain Markdown text."""
    flat = " ".join(str(text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in flat)
