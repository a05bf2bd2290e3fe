"""Real English text that every Python carries: the paragraphs of its language reference, by topic."""

from __future__ import annotations

import platform
import re
from collections import Counter, defaultdict

from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput

#: A topic with fewer distinct paragraphs gives a probe nothing to learn from.
FEWEST_PARAGRAPHS = 20
_FEWEST_WORDS = 6
_LEAST_LETTERS = 0.75
_BLANK_LINE = re.compile(r"\n\s*\n")
_WORD = re.compile(r"[A-Za-z]{2,}")
_ENGLISH = re.compile(r"\b(the|is|a|of|to|are|and|in)\b")
_SENTENCE_END = re.compile(r"[.:;?!)]$")


def embedded_corpus() -> Corpus:
    """The paragraphs of `pydoc_data.topics`, labelled with their topic.

    Kept are prose paragraphs (no grammar, no interpreter sessions, no code, at least six words) that stand
    in one topic only, of topics with at least 20 of them: 13 topics on Python 3.11. What was left out is
    counted in `skipped`. The text differs a little between versions of Python; `source` names the version.

    Raises:
        BadInput: this Python was built without `pydoc_data`.

    >>> corpus = embedded_corpus()
    >>> len(corpus.labels) > 8 and all(text.label for text in corpus.texts)
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BadInput(
            "this Python has no pydoc_data.topics, the text that headwise uses by default; "
            "name a file (a text a line) or a data set instead"
        ) from error
    found, skipped = _paragraphs(topics)
    counts = Counter(topic for _, topic in found)
    kept = [Text(text, label=topic) for text, topic in found if counts[topic] >= FEWEST_PARAGRAPHS]
    skipped[f"in topics of fewer than {FEWEST_PARAGRAPHS} paragraphs"] = len(found) - len(kept)
    source = f"pydoc_data.topics of Python {platform.python_version()}, a paragraph each"
    return Corpus(kept, source=source, skipped=dict(skipped))


def _paragraphs(topics: dict[str, str]) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Distinct prose paragraphs with their topic, and why the others were left out."""
    found: dict[tuple[str, str], None] = {}
    topics_of: dict[str, set[str]] = defaultdict(set)
    skipped: Counter[str] = Counter()
    for topic, page in topics.items():
        for block in _BLANK_LINE.split(page):
            text = " ".join(block.split())
            if not _is_prose(text):
                skipped["not prose"] += 1
            elif (text, topic) in found:
                skipped["repeated"] += 1
            else:
                found[text, topic] = None
                topics_of[text].add(topic)
    # A paragraph that stands in two topics has no right answer.
    clear = [key for key in found if len(topics_of[key[0]]) == 1]
    skipped["in several topics"] = len(found) - len(clear)
    return clear, skipped


def _is_prose(text: str) -> bool:
    """Whether a block, on one line, reads as English sentences rather than as grammar or code."""
    if "::=" in text or ">>>" in text or len(_WORD.findall(text)) < _FEWEST_WORDS:
        return False
    letters = sum(char.isalpha() or char.isspace() for char in text) / len(text)
    ends = bool(_SENTENCE_END.search(text))
    return letters >= _LEAST_LETTERS and ends and bool(_ENGLISH.search(text))
