"""The coreference set that ships: short English texts whose links are known because they were written so."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass

from headwise.analysis.annotations.annotated import Annotated, Mention, Span
from headwise.analysis.annotations.templates import ANAPHORS, DEV, FILLERS, HELD_OUT, NAMES, NOUNS
from headwise.analysis.errors import BadInput

#: Texts of every template: a multiple of two antecedents times three agreement classes.
_TEXTS = 12
_PEOPLE, _THINGS = "fmp", "nq"
_PART = re.compile(
    r"\[(?P<entity>[A-Z])(?::(?P<form>noun|thing)|=(?P<phrase>[^\]]+))?\]"
    r"|<(?P<golds>[A-Z|]+):(?P<pronoun>\w+)>"
    r"|\{(?P<filler>\w+)(?::(?P<subject>[A-Z]))?\}"
)


@dataclass(frozen=True)
class _Entity:
    name: str
    form: str
    phrase: str

    @property
    def classes(self) -> str:
        """The agreement classes that it may have: fixed phrases are one thing."""
        if self.phrase:
            return "n"
        return _THINGS if self.form == "thing" else _PEOPLE


def coreference_set(split: str | None = None) -> list[Annotated]:
    """Texts with one anaphor each and exactly one earlier mention that agrees with it in gender and number.

    Fixed texts, generated from the templates of `templates.py`; nothing random. Candidates are all noun
    phrases before the anaphor; `template` names the template, so that intervals resample templates.

    Args:
        split: `dev`, `held-out` (other templates), or both if None.

    Raises:
        BadInput: another split.

    >>> coreference_set("dev")[0].text
    'The businesswoman who watched the painters admitted that she was jealous.'
    """
    parts = {"dev": DEV, "held-out": HELD_OUT}
    if split is not None and split not in parts:
        raise BadInput(f"split: got {split!r}, expected dev, held-out or None for both")
    chosen = {**DEV, **HELD_OUT} if split is None else parts[split]
    return [text for name in chosen for text in _texts(name, chosen[name])]


@functools.cache
def _texts(name: str, template: str) -> tuple[Annotated, ...]:
    return tuple(_Writer(name, template, i).written() for i in range(_TEXTS))


class _Writer:
    """One text of one template: who is of which class, which word stands where."""

    def __init__(self, name: str, template: str, number: int) -> None:
        self.name, self.template, self.number = name, template, number
        found = [match for match in _PART.finditer(template) if match["entity"]]
        self.entities = {m["entity"]: _Entity(m["entity"], m["form"] or "", m["phrase"] or "") for m in found}
        golds = next(m["golds"] for m in _PART.finditer(template) if m["golds"]).split("|")
        self.gold = golds[number % len(golds)]
        self.classes = self._agreement(number // len(golds))
        self.used: set[str] = set()

    def _agreement(self, turn: int) -> dict[str, str]:
        """A class for every entity, such that the antecedent alone agrees with the anaphor."""
        possible = self.entities[self.gold].classes
        gold = possible[turn % len(possible)]
        classes = {self.gold: gold}
        for entity in self.entities.values():
            if entity.name != self.gold:
                free = [c for c in entity.classes if _number_and_gender(c) != _number_and_gender(gold)]
                classes[entity.name] = free[self._hash("class", entity.name) % len(free)]
        return classes

    def _hash(self, *about: str) -> int:
        # A content hash, unlike a random generator, gives the same texts in every release of Python.
        key = "/".join((self.name, str(self.number), *about))
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")

    def _word(self, words: tuple[str, ...], about: str) -> str:
        """The word whose turn it is in this template's own order of the list, none twice in a text."""
        order = sorted(words, key=lambda word: hashlib.sha256(f"{self.name}/{about}/{word}".encode()).digest())
        turned = order[self.number % len(order) :] + order[: self.number % len(order)]
        # Compared by their beginnings, since "the lamps next to the lamp" would confuse even a reader.
        word = next(word for word in turned if word[:3] not in self.used)
        self.used.add(word[:3])
        return word

    def _phrase(self, entity: _Entity) -> tuple[str, str]:
        """The noun phrase and the kind of its mention."""
        agreement = self.classes[entity.name]
        if entity.phrase:
            return entity.phrase, "nominal"
        if entity.form == "" and agreement in NAMES and self._hash("named", entity.name) % 2:
            return self._word(NAMES[agreement], agreement + entity.name), "proper"
        return "the " + self._word(NOUNS[agreement], agreement + entity.name), "nominal"

    def written(self) -> Annotated:
        """The text with its mentions and its one link."""
        text, last = "", 0
        mentions: dict[str, Mention] = {}
        for match in _PART.finditer(self.template):
            text += self.template[last : match.start()]
            last = match.end()
            if match["filler"]:
                text += self._filler(match["filler"], match["subject"] or self.gold)
                continue
            phrase, kind = self._mention(match)
            if not text or text.endswith(". "):
                phrase = phrase[0].upper() + phrase[1:]
            key = match["entity"] or "anaphor"
            mentions[key] = Mention((len(text), len(text) + len(phrase)), _last_word(len(text), phrase), kind)
            text += phrase
        text += self.template[last:]
        link = (mentions["anaphor"].span, mentions[self.gold].span)
        return Annotated(text, (link,), template=self.name, mentions=tuple(mentions.values()))

    def _mention(self, match: re.Match[str]) -> tuple[str, str]:
        if match["entity"]:
            return self._phrase(self.entities[match["entity"]])
        phrase = ANAPHORS[self.classes[self.gold]][match["pronoun"]]
        return phrase, "nominal" if match["pronoun"] == "man" else "pronoun"

    def _filler(self, name: str, subject: str) -> str:
        if name == "was":
            return "were" if self.classes[subject] in "pq" else "was"
        return self._word(FILLERS[name], name)


def _number_and_gender(agreement: str) -> str:
    return "plural" if agreement in "pq" else agreement


def _last_word(start: int, phrase: str) -> Span:
    return start + phrase.rfind(" ") + 1, start + len(phrase)
