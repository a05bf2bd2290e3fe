"""What metrics mean, and how kinds of tasks come to their answers, for a reader who meets them first on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRICS = {
    "accuracy": "the share of right answers",
    "balanced-accuracy": "the share of right answers in each class, averaged over classes",
    "macro-f1": "F1, the harmonic mean of precision and recall, of each class, averaged over classes",
    "micro-f1": "F1, the harmonic mean of precision and recall, of all labels together",
    "matthews": "the correlation of answers and labels (Matthews): 1 is all right, 0 is chance",
    "span-f1": "F1, the harmonic mean of precision and recall, of the spans that the tags mean; a span counts if its "
    "type and both ends are right",
    "f1": "the overlap in words of an answer with the right one (F1)",
    "exact-match": "the share of answers that are word for word right",
    "perplexity": "between how many next tokens, as it were, the model wavers (e to the mean loss of a token)",
    "chrf": "the overlap in runs of characters of what is written with the right text (chrF)",
    "rouge-1": "the overlap in words of what is written with the right text (ROUGE)",
    "rouge-2": "the overlap in pairs of words of what is written with the right text (ROUGE)",
    "rouge-l": "the longest row of words that what is written shares with the right text (ROUGE)",
    "wer": "wrong, missing and added words, for each word that was said",
    "cer": "wrong, missing and added characters, for each character that was said",
    "accuracy@1": "how often the passage that belongs to a text is the nearest of all",
    "mrr": "1 over the rank of the passage that belongs to a text, on average",
    "spearman": "the correlation of the ranks of answers and labels: 1 is the same order, 0 none",
    "pearson": "the correlation of answers and labels: 1 is a straight line, 0 none",
}
KINDS = {
    "embedding-probe": "Classes are read from embeddings by a logistic regression, fitted on the dense model's of the texts "
    "that decided, then kept as it is.",
    "embedding-retrieval": "Texts and passages are held against one another by the cosine of their embeddings.",
    "embedding-similarity": "An answer is the cosine of the embeddings of two texts.",
    "minimal-pairs": "The model is right where it gives the better text of a pair the higher probability.",
    "masked-lm": "Some tokens, of every text the same for both models, are hidden and guessed from the others.",
}


def meaning(accuracy: Mapping[str, Any]) -> str:
    """What the metric is and how the task comes to its answers, in sentences; empty where neither is known.

    >>> meaning({"metric": "spearman", "kind": "embedding-similarity"})[-55:]
    'An answer is the cosine of the embeddings of two texts.'
    >>> meaning({"metric": "agreement", "meaning": "how many are equal"})
    'Agreement: how many are equal.'
    """
    metric = str(accuracy.get("metric", ""))
    said = accuracy.get("meaning") or METRICS.get(metric)
    parts = [f"{metric[:1].upper()}{metric[1:]}: {said}."] if said else []
    return " ".join([*parts, *([KINDS[kind]] if (kind := accuracy.get("kind")) in KINDS else [])])
