"""An annotated text: mentions as character spans, and which of them are linked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput

Span = tuple[int, int]

#: What a mention can be.
KINDS = ("pronoun", "proper", "nominal")

#: Personal, possessive and reflexive pronouns of English, as written in texts and word by word in treebanks.
PRONOUNS = re.compile(
    r"i|me|my|mine|myself|you|yours?|yourself|yourselves|he|him|his|himself|she|hers?|herself|it|its|itself|we|us"
    r"|ours?|ourselves|they|them|theirs?|themselves|themself|who|whom|whose|thou|thee|thy|thine",
    re.IGNORECASE,
)
#: What can follow the head noun of an English noun phrase.
_AFTER_HEAD = re.compile(
    r"of|who|whom|whose|which|that|in|on|at|with|without|from|for|to|by|near|behind|beside|under|over|about|into"
    r"|between|against|during|after|before|as",
    re.IGNORECASE,
)
_WORD = re.compile(r"\S+")
_EDGE = re.compile(r"^\W+|\W+$")
_POSSESSIVE = re.compile(r"['’]s?$")


@dataclass(frozen=True)
class Mention:
    """A span of a text that stands for something.

    Attributes:
        span: characters [start, end).
        head: characters of its head word; None: the last word before any of-phrase, relative clause or comma.
        kind: `pronoun`, `proper`, `nominal`, or `` where unknown.
    """

    span: Span
    head: Span | None = None
    kind: str = ""


@dataclass(frozen=True)
class Annotated:
    """A text with gold links between spans of it.

    Attributes:
        text: the text.
        links: pairs (from, to) of spans: anaphor and antecedent, dependent and head, or whatever is related.
        relation: what a link means; the links of `coreference` are taken as an equivalence.
        candidates: spans that may be chosen as a link's target; None: every mention and every linked span.
        template: texts of one template are resampled together; None: each text for itself.
        labels: one name a link (a dependency relation, say), or none at all.
        mentions: what is known beyond the span of a mention, linked or not.
        skipped: what the source held that this form cannot, counted by reason.
        judged: spans that may be asked for their link; None: all of them. The others only serve as candidates.

    >>> Annotated("Ann said she ran.", links=(((9, 12), (0, 3)),)).spans()
    ((0, 3), (9, 12))
    """

    text: str
    links: tuple[tuple[Span, Span], ...] = ()
    relation: str = "coreference"
    candidates: tuple[Span, ...] | None = None
    template: str | None = None
    labels: tuple[str, ...] = ()
    mentions: tuple[Mention, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict, compare=False)
    judged: tuple[Span, ...] | None = None

    def __post_init__(self) -> None:
        found = self.mistakes()
        if found:
            raise BadInput(f"annotated text {self.text[:40]!r}: " + "; ".join(found[:10]))

    def mistakes(self) -> list[str]:
        """What is wrong with the spans and labels, one sentence each; empty if nothing is.

        >>> Annotated("Ann ran.").mistakes()
        []
        """
        named = [(f"links[{i}][{k}]", span) for i, link in enumerate(self.links) for k, span in enumerate(link)]
        named += [(f"candidates[{i}]", span) for i, span in enumerate(self.candidates or ())]
        for i, mention in enumerate(self.mentions):
            named.append((f"mentions[{i}].span", mention.span))
            if mention.head is not None:
                named.append((f"mentions[{i}].head", mention.head))
        kinds = [
            f"mentions[{i}].kind: got {m.kind!r}, expected {', '.join(KINDS)}"
            for i, m in enumerate(self.mentions)
            if m.kind not in ("", *KINDS)
        ]
        found = [f"{where}: {fault}" for where, span in named if (fault := _fault(span, self.text))] + kinds
        if self.labels and len(self.labels) != len(self.links):
            found.append(f"labels: got {len(self.labels)}, expected one for each of the {len(self.links)} links")
        return found

    def spans(self) -> tuple[Span, ...]:
        """Every span that is linked, a mention or a candidate, in the order of the text."""
        linked = {span for link in self.links for span in link}
        return tuple(sorted(linked | {m.span for m in self.mentions} | set(self.candidates or ())))

    def mention(self, span: Span) -> Mention:
        """The mention with this span, its head and kind filled in by rule where the source has none.

        >>> Annotated("The king of Rome ran.").mention((0, 16)).head
        (4, 8)
        """
        known = next((m for m in self.mentions if m.span == span), Mention(span))
        head = known.head or head_word(self.text, span)
        return Mention(span, head, known.kind or kind_of(self.text[head[0] : head[1]]))

    def clusters(self) -> dict[Span, int]:
        """Span to number of its cluster: spans that links connect, in any number of steps.

        >>> Annotated("a b c d", links=(((2, 3), (0, 1)), ((4, 5), (2, 3)))).clusters()
        {(2, 3): 0, (0, 1): 0, (4, 5): 0}
        """
        number: dict[Span, int] = {}
        for i, (a, b) in enumerate(self.links):
            first, second = number.setdefault(a, i), number.setdefault(b, i)
            if first != second:
                # The smaller number wins, so that the order of the links plays no part in who is together.
                low, high = min(first, second), max(first, second)
                number = {span: low if n == high else n for span, n in number.items()}
        return number

    def moved(self, by: int, text: str) -> Annotated:
        """The same annotations in a `text` that holds this one `by` characters in."""

        def move(span: Span) -> Span:
            return span[0] + by, span[1] + by

        return Annotated(
            text,
            tuple((move(a), move(b)) for a, b in self.links),
            self.relation,
            None if self.candidates is None else tuple(move(span) for span in self.candidates),
            self.template,
            self.labels,
            tuple(Mention(move(m.span), m.head and move(m.head), m.kind) for m in self.mentions),
            self.skipped,
            None if self.judged is None else tuple(move(span) for span in self.judged),
        )


def corpus_of(annotated: Sequence[Annotated], source: str) -> Corpus:
    """The texts as a corpus whose `links` carry their annotations, ready for batches.

    >>> corpus_of([Annotated("Ann ran.")], "one text").texts[0].links.text
    'Ann ran.'
    """
    return Corpus([Text(one.text, links=one) for one in annotated], source=source)


def _fault(span: Span, text: str) -> str:
    start, end = span
    if not 0 <= start < end:
        return f"got [{start}, {end}], expected 0 <= start < end"
    if end > len(text):
        return f"got [{start}, {end}], but the text has {len(text)} characters"
    return "" if text[start:end].strip() else f"[{start}, {end}] covers only blanks"


def head_word(text: str, span: Span) -> Span:
    """Characters of the head word of an English noun phrase: its last word, before what follows a head.

    A rule of thumb for sources without syntax: "of", relative pronouns, prepositions and commas end the core
    of the phrase; punctuation and a possessive 's at the edge do not belong to the word.

    >>> head_word("the old king of Rome", (0, 20))
    (8, 12)
    """
    chosen: Span | None = None
    for word in _WORD.finditer(text, *span):
        core = word.group()
        if chosen is not None and _AFTER_HEAD.fullmatch(core):
            break
        trimmed = _trimmed(word.start(), core)
        chosen = trimmed or chosen
        if core.endswith(",") and trimmed:
            break
    return chosen or span


def _trimmed(start: int, word: str) -> Span | None:
    bare = _EDGE.sub("", word)
    if not bare:
        return None
    begin = start + word.index(bare)
    stem = _POSSESSIVE.sub("", bare)
    # A lone 's is a word of its own in some treebanks: the noun before it is the head.
    return (begin, begin + len(stem)) if stem and stem.lower() != "s" else None


def kind_of(head: str) -> str:
    """`pronoun`, `proper` or `nominal`, from a head word alone: a closed list, then its capital.

    >>> kind_of("Her"), kind_of("Ann"), kind_of("king")
    ('pronoun', 'proper', 'nominal')
    """
    if PRONOUNS.fullmatch(head):
        return "pronoun"
    return "proper" if head[:1].isupper() else "nominal"
