"""Texts and collections of texts: what they hold, how they are drawn, how two collections are kept apart."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.analysis.corpus.media import Media
from headwise.analysis.errors import BadInput

Label = str | int | float

#: Above this share of common texts two collections count as the same data (DESIGN: 5 %).
MOST_OVERLAP = 0.05


#: How texts become a corpus, for those who gave something else.
HOW = (
    "Expected texts as Corpus([Text(line) for line in lines]); of rows of a data set, also a streamed one: "
    "Corpus([Text(row['text'], label=row['label']) for row in rows])"
)


@dataclass(frozen=True)
class Text:
    """One example: a text, an image or a clip, perhaps with a second text, a label and gold annotations.

    Attributes:
        text: the text itself; the name of an image or clip.
        pair: a second text that belongs to it (a hypothesis, an answer), if any.
        label: the class (a name or a number) or the value to predict, if any.
        links: gold annotations that some roles need, in the form of `headwise.analysis.annotations`.
        media: the image or clip that stands for the text, if any.
        choices: possible answers, of which the label says which is right (by number from 0, or word for word).

    >>> Text("a dog").id == Text("a dog", label="animal").id
    True
    """

    text: str
    pair: str | None = None
    label: Label | None = None
    links: Any = None
    media: Media | None = None
    choices: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Sixteen hex digits that name the content (labels and annotations do not count, nor an image's name)."""
        first = self.text if self.media is None else f"{self.media.kind}\0{self.media.digest}"
        content = "\0".join([first, *([] if self.pair is None else [self.pair]), *self.choices])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def right(self) -> int | None:
        """Number of the right choice, which the label says by number, letter or word for word; None if it does not.

        >>> Text("2 + 2", choices=("3", "4"), label="B").right
        1
        """
        if isinstance(self.label, int):
            return self.label if 0 <= self.label < len(self.choices) else None
        said = str(self.label).strip()
        if said in self.choices:
            return self.choices.index(said)
        number = ord(said.upper()) - ord("A") if len(said) == 1 else -1
        return number if 0 <= number < len(self.choices) else None


@dataclass(frozen=True)
class Corpus:
    """Texts in memory, with where they came from and what was left out on the way.

    Attributes:
        texts: the examples.
        source: what they were read from, as the report shows it.
        skipped: how many rows were left out, by reason.
        label_names: names of the classes in the source's own numbering, where the source has one.
        notes: what a reader of the report should know about how the source was read.
        rows: how many rows the source had, those left out included; 0 where it was no table.

    >>> corpus = Corpus([Text("a", label="x"), Text("b", label="y")], source="two letters")
    >>> len(corpus), corpus.labels
    (2, ['x', 'y'])
    """

    texts: Sequence[Text]
    source: str = "texts"
    skipped: dict[str, int] = field(default_factory=dict)
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rows: int = 0

    def __post_init__(self) -> None:
        for text in self.texts:
            if not isinstance(text, Text):
                raise BadInput(f"Corpus: got {type(text).__name__} {str(text)[:40]!r} for a text. {HOW}")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labels(self) -> list[Label]:
        """The distinct labels, sorted (numbers by value, names by alphabet)."""
        found = {text.label for text in self.texts if text.label is not None}
        return sorted(found, key=lambda label: (isinstance(label, str), label))

    @property
    def hash(self) -> str:
        """Sixteen hex digits that name the content, in whatever order it comes."""
        together = "".join(sorted(text.id + repr(text.label) for text in self.texts))
        return hashlib.sha256(together.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def summary(self) -> dict[str, Any]:
        """Source, count, hash, what was skipped: the record that a run keeps of its texts."""
        return {
            "source": self.source,
            **({"rows": self.rows} if self.rows else {}),
            "count": len(self),
            "hash": self.hash,
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
        }

    def sample(self, n: int, seed: int = 0, stratified: bool = True) -> Corpus:
        """At most `n` of the texts, drawn without replacement, in their original order.

        Args:
            n: how many; all of them if there are no more.
            seed: of the draw.
            stratified: keep the proportions of the labels (largest remainder), where there are labels.

        Raises:
            BadInput: `n` is not positive.

        >>> len(Corpus([Text(str(i), label=i % 2) for i in range(10)]).sample(4, seed=1))
        4
        """
        if n < 1:
            raise BadInput(f"samples: got {n}, expected at least 1; leave it out to use every text")
        if n >= len(self):
            return self
        generator = random.Random(seed)
        if stratified and self._stratifiable():
            chosen = self._stratified_draw(n, generator)
        else:
            chosen = generator.sample(range(len(self)), n)
        return replace(self, texts=[self.texts[i] for i in sorted(chosen)])

    def _stratifiable(self) -> bool:
        # A regression target has a label of its own for nearly every text: there is nothing to stratify by.
        return 1 < len(self.labels) <= max(2, len(self) // 2)

    def _stratified_draw(self, n: int, generator: random.Random) -> list[int]:
        rows: dict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(self.texts):
            rows[repr(text.label)].append(i)
        names = sorted(rows)
        exact = {name: n * len(rows[name]) / len(self) for name in names}
        take = {name: int(exact[name]) for name in names}
        by_remainder = sorted(names, key=lambda name: (take[name] - exact[name], name))
        for name in by_remainder[: n - sum(take.values())]:
            take[name] += 1
        return [i for name in names for i in generator.sample(rows[name], take[name])]

    def split(self, share: float = 0.5, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Two disjoint parts, `share` and the rest of every label, chosen by content hash alone.

        The order of the texts plays no part, and equal texts stay on the same side.

        Args:
            share: of each label's distinct texts that go to the first part, between 0 and 1.
            seed: another seed is another split.

        Raises:
            BadInput: `share` is not between 0 and 1, or a part would be empty.

        >>> first, second = Corpus([Text(str(i)) for i in range(10)]).split(0.3)
        >>> len(first), len(second)
        (3, 7)
        """
        if not 0 < share < 1:
            raise BadInput(f"share: got {share}, expected a number between 0 and 1")
        label_of: dict[str, str] = {}
        for text in self.texts:
            label_of.setdefault(text.id, repr(text.label) if self._stratifiable() else "")
        ids_of: dict[str, list[str]] = defaultdict(list)
        for name, label in label_of.items():
            ids_of[label].append(name)
        first: set[str] = set()
        for ids in ids_of.values():
            ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
            first.update(ranked[: round(share * len(ranked))])
        chosen = [text for text in self.texts if text.id in first]
        others = [text for text in self.texts if text.id not in first]
        parts = (
            replace(self, texts=chosen, source=f"{self.source} [first {share:g}, by hash]"),
            replace(self, texts=others, source=f"{self.source} [the rest, by hash]"),
        )
        if not all(len(part) for part in parts):
            raise BadInput(f"{self.source}: {len(label_of)} distinct texts are too few to split at {share:g}")
        return parts


def disjoint(calibration: Corpus, evaluation: Corpus) -> tuple[Corpus, int]:
    """The calibration texts that the evaluation does not contain, and how many had to go.

    Raises:
        BadInput: both come from the same source, or share more than 5 % of either's texts.

    >>> kept, overlap = disjoint(Corpus([Text("a"), Text("b")], "x"), Corpus([Text("c")], "y"))
    >>> len(kept), overlap
    (2, 0)
    """
    if calibration.source == evaluation.source:
        raise BadInput(
            f"calibration and evaluation are both {calibration.source!r}: what decides must not judge. "
            "Name another split or file for one of them, or leave evaluation out to have the texts split."
        )
    judged = Counter(text.id for text in evaluation.texts)
    kept = [text for text in calibration.texts if text.id not in judged]
    removed = len(calibration) - len(kept)
    seen = {text.id for text in calibration.texts}
    common = sum(count for name, count in judged.items() if name in seen)
    share = max(removed / max(1, len(calibration)), common / max(1, len(evaluation)))
    if share > MOST_OVERLAP:
        raise BadInput(
            f"{removed} of {len(calibration)} calibration texts ({calibration.source}) also stand in the "
            f"evaluation ({evaluation.source}, {len(evaluation)} texts): {share:.1%} in common, at most "
            f"{MOST_OVERLAP:.0%} allowed. Use another split or file for one of them."
        )
    return replace(calibration, texts=kept), removed
