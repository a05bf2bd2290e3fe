"""What an anaphor may choose from, which choices are right, and what simple rules would choose."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.analysis.annotations.annotated import Annotated, Span


@dataclass(frozen=True)
class Choice:
    """One anaphor with its candidates, all by the characters of their head words.

    Attributes:
        anaphor: head word of the anaphor.
        kind: `pronoun`, `proper` or `nominal`.
        candidates: head words of the earlier mentions, in the order of the text.
        gold: which of the candidates is an antecedent.
        same: which of the candidates is written like the anaphor.
    """

    anaphor: Span
    kind: str
    candidates: tuple[Span, ...]
    gold: tuple[bool, ...]
    same: tuple[bool, ...]


def choices(annotated: Annotated) -> tuple[list[Choice], dict[str, int]]:
    """Every anaphor that has an antecedent and something wrong to choose, and what was left out.

    Candidates are the head words of all earlier mentions, each word once; gold are those of the anaphor's
    cluster. An anaphor whose candidates are all right (or that has none) tells nothing.

    Returns:
        The choices in the order of the text, and counts: `first of its cluster` is not an anaphor,
        `no wrong candidate` one without a choice.

    >>> text = Annotated("Ann told Bob she ran.", (((13, 16), (0, 3)),), candidates=((0, 3), (9, 12)))
    >>> choices(text)[0][0].gold
    (True, False)
    """
    found, left = [], {"first of its cluster": 0, "no wrong candidate": 0}
    cluster = annotated.clusters()
    mentions = {span: annotated.mention(span) for span in annotated.spans()}
    head = {span: mention.head or span for span, mention in mentions.items()}
    allowed = set(mentions if annotated.candidates is None else annotated.candidates)
    order = sorted(mentions, key=lambda span: (head[span], span))
    for span in order:
        if span not in cluster or (annotated.judged is not None and span not in annotated.judged):
            continue
        earlier = [other for other in order if other in allowed and head[other][1] <= head[span][0]]
        # Nested mentions can share a head word: it is one candidate, right if any of them is.
        right: dict[Span, bool] = {}
        for other in earlier:
            right[head[other]] = right.get(head[other], False) or cluster.get(other) == cluster[span]
        if not any(right.values()):
            left["first of its cluster"] += 1
        elif all(right.values()):
            left["no wrong candidate"] += 1
        else:
            word = _word(annotated, head[span])
            same = tuple(_word(annotated, other) == word for other in right)
            kind = mentions[span].kind
            found.append(Choice(head[span], kind, tuple(right), tuple(right.values()), same))
    return found, left


def _word(annotated: Annotated, span: Span) -> str:
    start, end = span
    return str(annotated.text[start:end]).casefold()


def nearest_is_right(choice: Choice) -> bool:
    """Whether the last mention before the anaphor is an antecedent: what a purely local head would score.

    >>> nearest_is_right(Choice((9, 12), "pronoun", ((0, 3), (4, 7)), (True, False), (False, False)))
    False
    """
    return choice.gold[-1]
