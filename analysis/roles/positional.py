"""Positional roles: attention to a fixed place beside the query."""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.roles.relation import View

#: How far the window reaches on either side, in tokens.
REACH = 3


def previous(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The token before the query. None between different sequences.

    >>> import torch
    >>> previous(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[False, False], [True, False]]]
    """
    return _offset(view, -1)


def next_token(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The token after the query. None between different sequences.

    >>> import torch
    >>> next_token(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[False, True], [False, False]]]
    """
    return _offset(view, 1)


def itself(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The query token itself. None between different sequences.

    >>> import torch
    >>> itself(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)).tolist()
    [[[True, False], [False, True]]]
    """
    return _offset(view, 0)


def window(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The tokens at most three away, the query included. None between different sequences.

    >>> import torch
    >>> int(window(View(None, None, torch.ones(1, 9, 9, dtype=torch.bool), same=True))[0, 4].sum())
    7
    """
    return view.allowed & (view.ahead.abs() <= REACH) if view.same else None


def _offset(view: View, offset: int) -> Tensor | None:
    return view.allowed & (view.ahead == offset) if view.same else None
