"""How alike heads are: one measure a file, each a reducer over the data with its chance level."""

from collections.abc import Callable
from inspect import signature

from headwise.analysis.capture.seen import Reducer
from headwise.analysis.similarity.cka import Cka
from headwise.analysis.similarity.cosine import Cosine
from headwise.analysis.similarity.focus import Focused, PerText
from headwise.analysis.similarity.hellinger import Hellinger
from headwise.analysis.similarity.jensen_shannon import JensenShannon
from headwise.analysis.similarity.pearson import Pearson
from headwise.analysis.similarity.replaceability import Replaceability

#: Every measure by name; each gives `similarity/<name>` and `similarity/<name>_chance`, `[head, head]`.
MEASURES: dict[str, Callable[..., Reducer]] = {
    "pearson": Pearson,
    "cosine": Cosine,
    "hellinger": Hellinger,
    "jensen_shannon": JensenShannon,
    "cka": Cka,
}
#: Those that can keep their sums by part of the texts, as they take `blocks`: clusters are tried on resampled texts.
IN_PARTS = frozenset(name for name, measure in MEASURES.items() if "blocks" in signature(measure).parameters)
#: Those that cost next to nothing beside the forward pass.
CHEAP = ("pearson", "cosine", "hellinger")

__all__ = [
    "CHEAP",
    "IN_PARTS",
    "MEASURES",
    "Cka",
    "Cosine",
    "Focused",
    "Hellinger",
    "JensenShannon",
    "Pearson",
    "PerText",
    "Replaceability",
]
