"""The result of an analysis: named arrays over heads, with how they were measured; save and load."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.plain import plain

SCHEMA = 1
_ARRAYS, _FACTS = "arrays.safetensors", "evidence.json"


@dataclass
class Evidence:
    """Everything measured about the heads of a model.

    Attributes:
        heads: (site name, ORIGINAL index) of every head: the head axis of all arrays.
        arrays: by name: `statistics/<name>` `[head]`, `similarity/<measure>` and `…_chance` `[head, head]`,
            `clusters/{label,order,linkage,representative}`, `roles/<role>/{score,chance,excess,low,high,p,q,
            n,assigned}` `[head]`, `importance/<kind>` `[head]`, `parts/<name>` `[head, part, 2]` (sums and rows). NaN: not applicable.
            A role's `score` is a mean over the rows that have a choice (`n` of them): one whose keys are all in the
            relation, as the first of a causal map is for `self` and `first-token`, is left out, where
            `statistics/first` counts every row.
        facts: how it was measured, as JSON: model, texts, versions, settings.

    >>> evidence = Evidence([("0", 0), ("0", 1)], {"statistics/entropy": np.array([1.0, 2.0])})
    >>> evidence.by_site("statistics/entropy")
    {'0': array([1., 2.])}
    """

    heads: list[tuple[str, int]]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def labels(self) -> list[str]:
        """`site.head` for every head, as people read it."""
        return [f"{site}.{head}" for site, head in self.heads]

    def by_site(self, name: str) -> dict[str, np.ndarray]:
        """An array over heads as one array per site.

        Raises:
            BadInput: there is no such array; the message lists those there are.
        """
        values = self[name]
        found: dict[str, list[int]] = {}
        for i, (site, _) in enumerate(self.heads):
            found.setdefault(site, []).append(i)
        return {site: values[rows] for site, rows in found.items()}

    def roles(self) -> list[list[str]]:
        """The roles assigned to each head, the one with the largest excess first; an empty list for none.

        >>> arrays = {"roles/self/assigned": np.array([True]), "roles/self/excess": np.array([0.4])}
        >>> Evidence([("0", 0)], arrays).roles()
        [['self']]
        """
        names = [name.split("/")[1] for name in self.arrays if name.startswith("roles/") and name.endswith("/assigned")]
        found: list[list[str]] = []
        for i in range(len(self.heads)):
            mine = [name for name in names if self.arrays[f"roles/{name}/assigned"][i]]
            found.append(sorted(mine, key=lambda name, i=i: -float(self.arrays[f"roles/{name}/excess"][i])))  # type: ignore[misc]
        return found

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise BadInput(f"evidence has no {name!r}; it has: {', '.join(sorted(self.arrays)) or 'nothing'}")
        return self.arrays[name]

    def save(self, folder: str | Path) -> None:
        """Write `arrays.safetensors` and `evidence.json` into the folder, which is made if need be.

        Raises:
            BadInput: the facts hold something that JSON cannot say.
        """
        from safetensors.numpy import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        document = {"schema": SCHEMA, "heads": [list(head) for head in self.heads], "facts": self.facts}
        try:
            text = json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"facts of the evidence: {error}; they must be numbers, strings, lists and mappings"
            ) from None
        save_file({name: np.ascontiguousarray(array) for name, array in self.arrays.items()}, target / _ARRAYS)
        (target / _FACTS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Evidence:
        """Read what `save` wrote.

        Raises:
            BadInput: files are missing or broken, of another schema, or do not fit together.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        source = Path(folder)
        try:
            document = json.loads((source / _FACTS).read_text(encoding="utf-8"))
            arrays = load_file(source / _ARRAYS)
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise BadInput(
                f"{source}: no evidence there ({error}); expected {_FACTS} and {_ARRAYS} as "
                "`headwise analyze` writes them"
            ) from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            got = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise BadInput(f"{source / _FACTS}: schema {got!r}, expected {SCHEMA}; made by another release of headwise")
        try:
            # index() takes whole numbers alone: 7.5 and infinity are no heads.
            heads = [(str(site), index(head)) for site, head in document["heads"]]
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{source / _FACTS}: broken ({error!r}); restore the file or run again") from None
        wrong = [name for name, array in arrays.items() if _per_head(name) and array.shape[:1] != (len(heads),)]
        if wrong:
            raise BadInput(
                f"{source}: {wrong[0]} has {arrays[wrong[0]].shape} for {len(heads)} heads; the files do not "
                "belong together"
            )
        facts = document.get("facts", {})
        if not isinstance(facts, dict):
            raise BadInput(f"{source / _FACTS}: facts: expected an object; restore the file or run again")
        return cls(heads, arrays, facts)


def _per_head(name: str) -> bool:
    return not name.startswith("clusters/") or name in ("clusters/label", "clusters/representative")
