"""How alike heads are: one measure a file, each a reducer over the data with its chance level."""

from collections.abc import Callable, Mapping

from headwise.analysis.seen import Reducer
from headwise.analysis.similarity.cka import Cka
from headwise.analysis.similarity.cosine import Cosine
from headwise.analysis.similarity.focus import Focused, PerText
from headwise.analysis.similarity.hellinger import Hellinger
from headwise.analysis.similarity.jensen_shannon import JensenShannon
from headwise.analysis.similarity.pearson import Pearson
from headwise.analysis.similarity.replaceability import Replaceability
from headwise.analysis.sites import Site

#: Every measure by name; each gives `similarity/<name>` and `similarity/<name>_chance`, `[head, head]`.
MEASURES: dict[str, Callable[[Mapping[str, Site]], Reducer]] = {
    "pearson": Pearson,
    "cosine": Cosine,
    "hellinger": Hellinger,
    "jensen_shannon": JensenShannon,
    "cka": Cka,
}
#: Those whose sums can be kept by part of the texts (`blocks`), so that clusters can be tried on resampled texts.
IN_PARTS: dict[str, type[Pearson] | type[Cosine] | type[Hellinger] | type[JensenShannon]] = {
    "pearson": Pearson,
    "cosine": Cosine,
    "hellinger": Hellinger,
    "jensen_shannon": JensenShannon,
}
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
