"""CoNLL-U treebanks: dependencies as links, and the `Entity=` coreference of GUM and CorefUD.

Multiword ranges (`5-6`) share the characters of their surface form; empty nodes (`8.1`) have none and are
passed over.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.annotations.annotated import Annotated, Span
from headwise.analysis.annotations.mistakes import Mistakes, read_lines
from headwise.analysis.errors import BadInput


@dataclass(frozen=True)
class Word:
    """One syntactic word of a sentence.

    Attributes:
        number: from 1, as HEAD counts.
        form: the word as written.
        span: characters [start, end) of the sentence's text; words of a fused form can share them.
        head: number of its head, 0 for the root.
        relation: to its head.
        tag: universal part of speech.
        misc: the last column, as a dictionary.
    """

    number: int
    form: str
    span: Span
    head: int
    relation: str
    tag: str
    misc: dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A sentence of a treebank: its text, words, and what its comments say."""

    text: str
    words: tuple[Word, ...]
    comments: dict[str, Any]


def read_sentences(path: str | Path) -> list[Sentence]:
    r"""The sentences of a CoNLL-U file, every word with its characters and a head that exists.

    Raises:
        BadInput: the file cannot be read or parsed, a HEAD points nowhere, or a word is not in `# text`; or
            the package conllu is missing.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.conllu")
    >>> row = "{}\t{}\t_\t_\t_\t_\t{}\t{}\t_\t_\n"
    >>> _ = file.write_text(row.format(1, "Ann", 2, "nsubj") + row.format(2, "ran", 0, "root"))
    >>> [word.span for word in read_sentences(file)[0].words]
    [(0, 3), (4, 7)]
    """
    if importlib.util.find_spec("conllu") is None:
        raise BadInput(f"{path}: treebanks need the package conllu; pip install 'headwise[annotations]'")
    mistakes = Mistakes(path)
    found = []
    for line, block in _blocks(read_lines(path)):
        try:
            found.append(_sentence(block))
        except BadInput as error:
            mistakes.add(line, str(error))
    if not found and not mistakes.found:
        mistakes.add(1, "no sentence in it")
    mistakes.stop_if_any("1\tAnn\tAnn\tPROPN\t_\t_\t2\tnsubj\t_\t_")
    return found


def read_dependencies(path: str | Path) -> list[Annotated]:
    r"""A text a sentence: a link from every word to its head, labelled with the relation.

    The root has no link; nor has a word that shares its characters with its head (fused forms): counted in
    `skipped`.

    Raises:
        BadInput: as `read_sentences`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.conllu")
    >>> row = "{}\t{}\t_\t_\t_\t_\t{}\t{}\t_\t_\n"
    >>> _ = file.write_text(row.format(1, "Ann", 2, "nsubj") + row.format(2, "ran", 0, "root"))
    >>> read_dependencies(file)[0].links, read_dependencies(file)[0].labels
    ((((0, 3), (4, 7)),), ('nsubj',))
    """
    found = []
    for sentence in read_sentences(path):
        span = {word.number: word.span for word in sentence.words}
        pairs = [(word, span[word.head]) for word in sentence.words if word.head]
        apart = [(word, head) for word, head in pairs if word.span != head]
        fused = len(pairs) - len(apart)
        found.append(
            Annotated(
                sentence.text,
                tuple((word.span, head) for word, head in apart),
                relation="dependency",
                labels=tuple(word.relation for word, _ in apart),
                skipped={"fused with its head": fused} if fused else {},
            )
        )
    return found


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """First line number and lines of every sentence."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _sentence(block: list[str]) -> Sentence:
    # Imported here, since only this reader needs it.
    import conllu

    try:
        (parsed,) = conllu.parse("\n".join(block) + "\n\n")
    except (conllu.exceptions.ParseException, ValueError) as error:
        raise BadInput(f"not CoNLL-U: {str(error).splitlines()[0] if str(error) else 'cannot be parsed'}") from error
    tokens = [token for token in parsed if not (isinstance(token["id"], tuple) and token["id"][1] == ".")]
    text = parsed.metadata.get("text") or _joined(tokens)
    words: list[Word] = []
    place = 0
    fused: dict[int, Span] = {}
    for token in tokens:
        form = token["form"]
        if isinstance(token["id"], tuple):
            first, _, last = token["id"]
            span = _place(text, form, place)
            place = span[1]
            fused.update(dict.fromkeys(range(first, last + 1), span))
            continue
        number = token["id"]
        if number in fused:
            span = _share(fused[number], [w for w in words if fused.get(w.number) == fused[number]], form, text)
        else:
            span = _place(text, form, place)
            place = span[1]
        words.append(
            Word(number, form, span, token["head"] or 0, token["deprel"] or "", token["upos"] or "",
                 dict(token["misc"] or {}))
        )  # fmt: skip
    _check_heads(words)
    return Sentence(text, tuple(words), dict(parsed.metadata))


def _joined(tokens: list[Any]) -> str:
    """The surface text, for files without `# text`."""
    text, covered = "", 0
    for token in tokens:
        if isinstance(token["id"], tuple):
            covered = token["id"][2]
        elif token["id"] <= covered:
            continue
        text += token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ")
    return text.rstrip()


def _place(text: str, form: str, start: int) -> Span:
    begin = start
    while begin < len(text) and text[begin].isspace():
        begin += 1
    if not text.startswith(form, begin):
        raise BadInput(f"{form!r} is not where # text goes on: {text[begin : begin + 20]!r}")
    return begin, begin + len(form)


def _share(whole: Span, before: list[Word], form: str, text: str) -> Span:
    """A word's own part of its fused form where the parts spell it, else all of it."""
    if before and before[-1].span == whole:
        return whole
    begin = before[-1].span[1] if before else whole[0]
    end = begin + len(form)
    return (begin, end) if text.startswith(form, begin) and end <= whole[1] else whole


def _check_heads(words: list[Word]) -> None:
    numbers = {word.number for word in words}
    for word in words:
        if word.head and word.head not in numbers:
            raise BadInput(f"word {word.number} ({word.form!r}): HEAD {word.head} is no word of the sentence")
