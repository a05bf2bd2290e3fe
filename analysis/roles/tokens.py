"""Roles that say what the attended token is: a number, a function word, a rare one, the query's own word again."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.roles.lexicon import members
from headwise.analysis.roles.relation import Relation, View

#: Punctuation marks told apart, by Unicode category or by themselves.
MARKS: dict[str, tuple[str, ...]] = {
    "comma": (",", "、", "،", "，"),
    "full-stop": (".", "。"),
    "question-or-exclamation": ("?", "!", "？", "！"),
    "colon": (":", ";"),
    "quotation-mark": ('"', "'", "Pi", "Pf"),
    "bracket": ("Ps", "Pe"),
    "dash": ("Pd",),
}

_WORDS = """
a about after against all although am among an and any are as at be because been before being beside between
both but by can could did do does down during each either every for from had has have having he her here herself
him himself his how i if in into is it its itself may me might must my myself near neither no nor not of off on
onto or our ourselves out over per shall she should since so some than that the their them themselves there
these they this those though through to toward towards under unless until up upon us was we were what when where
whereas which while who whom whose why will with within without would yet you your yourself
"""
#: English words that carry grammar rather than content.
FUNCTION_WORDS = frozenset(_WORDS.split())
#: Of all tokens of the texts, the share that counts as rare.
RAREST = 0.10


def token_class(name: str, holds: Callable[[str], bool], view: View) -> Bool[Tensor, "batch query key"] | None:
    """Keys whose text is of a class, special tokens left out; None where the tokens' text is not known.

    Args:
        name: of the class; what was decided for a token is remembered under it.
        holds: whether a token's text is in the class.
        view: the tokens.

    >>> token_class("x", str.isdigit, View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    keys = view.keys
    if keys is None or keys.tokenizer is None:
        return None
    chosen = members(name, holds, keys) & keys.valid & ~keys.special
    return chosen.to(view.allowed.device)[:, None, :] & view.allowed


def is_number(text: str) -> bool:
    """Whether a token is a number or a part of one.

    >>> is_number("1,5"), is_number("##23"), is_number("a1")
    (True, True, False)
    """
    bare = text.removeprefix("##").replace(",", "").replace(".", "")
    return bool(bare) and all(unicodedata.category(letter).startswith("N") for letter in bare)


def is_function_word(text: str) -> bool:
    """Whether a token is a whole function word of English.

    >>> is_function_word("The"), is_function_word("##the")
    (True, False)
    """
    return text.lower() in FUNCTION_WORDS


def is_mark(kinds: tuple[str, ...], text: str) -> bool:
    """Whether a token consists of marks of one kind.

    >>> is_mark(MARKS["bracket"], "("), is_mark(MARKS["comma"], ".")
    (True, False)
    """
    bare = text.removeprefix("##") or text
    return bool(bare) and all(letter in kinds or unicodedata.category(letter) in kinds for letter in bare)


number: Relation = partial(token_class, "number", is_number)


def function_word(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Function words of English that are one token; None where the tokens' text is not known.

    The beginning of a longer word does not count, whatever it spells: `in` of `in-formal` is no preposition.

    >>> function_word(View(None, None, torch.ones(1, 2, 2, dtype=torch.bool), same=True)) is None
    True
    """
    found = token_class("function-word", is_function_word, view)
    if found is None or view.keys is None:
        return None
    # One place more for tokens that belong to no word that is known.
    number = view.keys.words + 1
    size = int(number.max()) + 1 if number.numel() else 1
    counts = torch.zeros(len(number), size, dtype=torch.long, device=number.device)
    counts.scatter_add_(1, number, torch.ones_like(number))
    alone = (counts.gather(1, number) == 1) | (number == 0)
    return found & alone.to(found.device)[:, None, :]


def mark(name: str) -> Relation:
    """The relation of one kind of punctuation mark.

    >>> callable(mark("comma"))
    True
    """
    return partial(token_class, name, partial(is_mark, MARKS[name]))


def repeated(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Other places of the query's own token, earlier or later; None between different sequences.

    >>> from headwise.analysis.corpus.batching import Tokens
    >>> ids = torch.tensor([[7, 8, 7]])
    >>> same = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 3, 2, dtype=torch.long))
    >>> repeated(View(same, same, torch.ones(1, 3, 3, dtype=torch.bool), same=True))[0, 0].tolist()
    [False, False, True]
    """
    if not view.same or view.queries is None or view.keys is None:
        return None
    plain = (view.keys.valid & ~view.keys.special).to(view.allowed.device)
    equal = view.queries.ids[:, :, None] == view.keys.ids[:, None, :]
    return equal.to(view.allowed.device) & plain[:, None] & (view.ahead != 0) & view.allowed


def rare_tokens(batches: Iterable[Batch]) -> Relation:
    """The relation to rare tokens: those that together make a tenth of all tokens of these texts, the rarest.

    >>> from headwise.analysis.corpus.batching import Tokens
    >>> ids = torch.tensor([[7] * 18 + [8, 9]])
    >>> tokens = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 20, 2, dtype=torch.long))
    >>> rare = rare_tokens([Batch({}, [], {"": tokens})])
    >>> rare(View(tokens, tokens, torch.ones(1, 20, 20, dtype=torch.bool), same=True))[0, 0, 16:].tolist()
    [False, False, True, True]
    """
    counts = torch.zeros(0, dtype=torch.long)
    for batch in batches:
        for tokens in batch.tokens.values():
            found = torch.bincount(tokens.ids[tokens.valid & ~tokens.special].cpu())
            if len(found) > len(counts):
                counts, found = found, counts
            counts[: len(found)] += found
    order = torch.argsort(counts, stable=True)
    share = counts[order].cumsum(0) / counts.sum().clamp(min=1)
    is_rare = torch.zeros(len(counts) + 1, dtype=torch.bool)
    is_rare[order[(share <= RAREST) & (counts[order] > 0)]] = True

    def rare(view: View) -> Tensor | None:
        if view.keys is None:
            return None
        keys = view.keys
        # Ids that no text had fall on the last entry, which is False.
        member = is_rare.to(keys.ids.device)[keys.ids.clamp(max=len(is_rare) - 1)]
        return (member & keys.valid & ~keys.special).to(view.allowed.device)[:, None, :] & view.allowed

    return rare
