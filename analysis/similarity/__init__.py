"""How alike heads are: one measure a file, each a reducer over the data with its chance level."""

from headwise.analysis.similarity.cosine import Cosine
from headwise.analysis.similarity.hellinger import Hellinger
from headwise.analysis.similarity.pearson import Pearson

#: Every measure by name; each gives `similarity/<name>` and `similarity/<name>_chance`, `[head, head]`.
MEASURES: dict[str, type[Pearson] | type[Cosine] | type[Hellinger]] = {
    "pearson": Pearson,
    "cosine": Cosine,
    "hellinger": Hellinger,
}

__all__ = ["MEASURES", "Cosine", "Hellinger", "Pearson"]
