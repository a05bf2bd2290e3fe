"""The head axis: arrays and plans that speak of the heads that a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.prune.report.shapes import REMEDY

#: Heads of one site.
_MOST_HEADS = 65_536


def check_arrays(path: Path, arrays: Mapping[str, np.ndarray], heads: int) -> None:
    """Return if every array that pages draw has the form that they draw.

    Raises:
        BadInput: an array has another shape or kind, or an index points nowhere.

    >>> check_arrays(Path("evidence"), {"similarity/pearson": np.eye(2)}, 3)
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: evidence: similarity/pearson is (2, 2), expected (3, 3); restore the file or run again
    """
    for name, wanted in _wanted(arrays, heads):
        if arrays[name].shape != wanted:
            raise BadInput(f"{path}: {name} is {arrays[name].shape}, expected {wanted}; {REMEDY}")
        if arrays[name].dtype.kind not in "biuf":
            raise BadInput(f"{path}: {name} holds {arrays[name].dtype}, expected numbers; {REMEDY}")
    everyone = np.arange(heads)
    present, order = (arrays.get(f"clusters/{name}", everyone) for name in ("present", "order"))
    if not _among(present, heads) or not np.array_equal(np.sort(order, axis=None), present):
        raise BadInput(f"{path}: clusters/order and clusters/present do not hold the same heads; {REMEDY}")
    tree = arrays.get("clusters/linkage")
    if tree is not None and not _is_tree(tree, len(present)):
        raise BadInput(f"{path}: clusters/linkage is no tree of {len(present)} heads; {REMEDY}")


def _wanted(arrays: Mapping[str, np.ndarray], heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in arrays:
        part = name.partition("/")[0]
        if part in ("similarity", "similarity_error"):
            yield name, (heads, heads)
        elif part == "roles" or name in ("clusters/label", "clusters/representative"):
            yield name, (heads,)


def _among(indices: np.ndarray, end: int) -> bool:
    """Whether these are distinct heads in rising order."""
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        return False
    return bool((np.diff(indices) > 0).all()) and (not indices.size or bool(indices[0] >= 0 and indices[-1] < end))


def _is_tree(joints: np.ndarray, leaves: int) -> bool:
    """Whether every leaf and every joint but the last is joined once, and only after it was made."""
    if joints.shape != (max(0, leaves - 1), 4) or not np.isfinite(joints).all():
        return False
    made = leaves + np.arange(len(joints))
    joined = joints[:, :2]
    return bool((joined < made[:, None]).all()) and np.array_equal(
        np.sort(joined, axis=None), np.arange(max(0, 2 * leaves - 2))
    )


def check_heads(path: Path, remove: Mapping[str, Sequence[int]], heads: Sequence[tuple[str, int]]) -> None:
    """Return if heads are counted as they should be, and those that a plan removes are among them.

    Raises:
        BadInput: a head stands twice or has a number that no model has; plan and evidence speak of different heads.

    >>> check_heads(Path("run"), {"0": [4]}, [("0", 0)])
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: run: the plan removes head 0.4, which is not among its heads; restore the file or run again
    """
    known = set(heads)
    if len(known) < len(heads) or any(not 0 <= head < _MOST_HEADS for _, head in heads):
        raise BadInput(f"{path}: the heads are not counted from 0, each once; {REMEDY}")
    strange = next(((s, h) for s, found in remove.items() for h in found if (s, h) not in known), None)
    if strange is not None:
        raise BadInput(
            f"{path}: the plan removes head {strange[0]}.{strange[1]}, which is not among its heads; {REMEDY}"
        )
