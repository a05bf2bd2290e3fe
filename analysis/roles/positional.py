"""Positional roles: attention to a fixed place beside the query, in a text or in an image.

In an image a place is a patch: `previous` is the one on the left, `next` the one on the right. The class token and
other learned tokens stand nowhere: their rows do not count, and they are beside nothing.
"""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.roles.relation import View

#: How far the window reaches on either side, in tokens; in an image, in patches up, down, left and right.
REACH, REACH_IN_IMAGES = 3, 2


def previous(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The token before the query, the patch on its left. None between different sequences.

    >>> import torch
    >>> previous(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[False, False], [True, False]]]
    """
    return _offset(view, -1)


def next_token(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The token after the query, the patch on its right. None between different sequences.

    >>> import torch
    >>> next_token(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[False, True], [False, False]]]
    """
    return _offset(view, 1)


def above(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The patch above the query. None outside images.

    >>> import torch
    >>> above(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    return None if view.grid is None else patch_at(view, -1, 0)


def below(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The patch below the query. None outside images.

    >>> import torch
    >>> from headwise.analysis.corpus.grids import Grid
    >>> column = View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True, grid=Grid(0, 2, 1))
    >>> below(column).tolist()
    [[[False, True], [False, False]]]
    """
    return None if view.grid is None else patch_at(view, 1, 0)


def itself(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The query token or patch itself. None between different sequences.

    >>> import torch
    >>> itself(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[True, False], [False, True]]]
    """
    return _offset(view, 0)


def window(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The tokens at most three away, the query included; in an image the square of 5 patches by 5 around it.

    None between different sequences.

    >>> import torch
    >>> int(window(View(None, None, torch.ones(1, 9, 9, dtype=torch.bool), same=True))[0, 4].sum())
    7
    """
    if not view.same:
        return None
    if view.grid is None:
        return view.allowed & (view.ahead.abs() <= REACH)
    down, right = view.beside
    return view.allowed & (down.abs() <= REACH_IN_IMAGES) & (right.abs() <= REACH_IN_IMAGES)


def patch_at(view: View, down: int, right: int) -> Bool[Tensor, "batch query key"]:
    """The patch so many places below the query and to its right.

    >>> import torch
    >>> from headwise.analysis.corpus.grids import Grid
    >>> square = View(None, None, torch.ones(1, 5, 5, dtype=torch.bool), same=True, grid=Grid(1, 2, 2))
    >>> patch_at(square, 1, -1).nonzero().tolist()
    [[0, 2, 3]]
    """
    below_it, beside_it = view.beside
    return view.allowed & (below_it == down) & (beside_it == right)


def _offset(view: View, offset: int) -> Tensor | None:
    if not view.same:
        return None
    return view.allowed & (view.ahead == offset) if view.grid is None else patch_at(view, 0, offset)
