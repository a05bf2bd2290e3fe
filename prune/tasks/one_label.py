"""One label: texts that are all of one class decide and judge little, which is told before it surprises."""

from __future__ import annotations

import logging

from headwise.analysis.corpus.texts import Corpus

log = logging.getLogger("headwise")

_MEANS = {
    "calibration": "scores that look at labels see nothing to tell apart",
    "evaluation": "a model that knows no other answer looks as good, so what they judge says little",
}


def one_label(corpus: Corpus, part: str, kind: str) -> tuple[str, ...]:
    """A note where all labels that a task of this kind reads are one and the same; a warning says so, too.

    Args:
        corpus: the texts.
        part: `calibration` or `evaluation`.
        kind: of the task.

    >>> from headwise.analysis.corpus.texts import Text
    >>> one_label(Corpus([Text("a", label=1), Text("b", label=0)]), "evaluation", "text-classification")
    ()
    """
    from headwise.prune.tasks import TASKS

    told_apart = getattr(TASKS.get(kind), "tells_apart", "")
    labels = {text.label for text in corpus.texts} if told_apart else set()
    if told_apart == "tag":
        labels = {tag for label in labels for tag in str(label).split()}
    if len(labels) != 1 or len(corpus) < 2:
        return ()
    label = repr(next(iter(labels)))
    shown = label if len(label) <= 60 else f"{label[:60]}…"
    note = f"all {len(corpus)} have one label, {shown}: {_MEANS[part]}"
    log.warning("%s texts: %s", part, note)
    return (note,)
