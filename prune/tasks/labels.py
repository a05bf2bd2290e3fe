"""Which output of a classification head a label of the data means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.corpus.texts import Label
from headwise.analysis.errors import BadInput

_GENERIC = re.compile(r"label_\d+")
#: Of more labels than these a message names the first; and of a longer one, that is perhaps a text, the beginning.
_MOST, _LONGEST = 12, 60


def label_numbers(
    labels: Sequence[Label],
    config: Any,
    label_names: Sequence[str] = (),
    given: Mapping[str, int | str] | None = None,
) -> dict[Label, int]:
    """Output number of every label: by the given map, else by name, else by number.

    Names win over numbers, because checkpoints number their classes as they please (several MNLI models
    count entailment as 2, the data set as 0). Numbers are used where the model's names say nothing
    (LABEL_0, …) or the data have nothing but numbers.

    Args:
        labels: the distinct labels of the data.
        config: of the model, with `id2label`.
        label_names: the data's names of the classes in the data's own order, if it has any.
        given: label of the data (as text) to the model's label, by name or number.

    Raises:
        BadInput: a label is not one of the model's; the message lists both sides.

    >>> from transformers import BertConfig
    >>> label_numbers(["pos", "neg"], BertConfig(id2label={0: "NEG", 1: "POS"}))
    {'pos': 1, 'neg': 0}
    >>> label_numbers([0.0, 1.0], BertConfig(id2label={0: "NEG", 1: "POS"}))
    {0.0: 0, 1.0: 1}
    """
    names = {int(number): str(name) for number, name in config.id2label.items()}
    by_name = {_plain(name): number for number, name in names.items()}
    if all(_GENERIC.fullmatch(_plain(name)) for name in names.values()):
        by_name.update({_plain(name): i for i, name in enumerate(label_names) if i in names})
    of_the_model = dict(by_name)  # what is given may give one of its names another meaning
    for said, target in (given or {}).items():
        number = target if isinstance(target, int) else of_the_model.get(_plain(target), -1)
        if number not in names:
            raise _unknown([target], labels, names)
        by_name[_plain(said)] = number
    found: dict[Label, int] = {}
    for label in labels:
        number = by_name.get(_plain(label), _number(label))
        if number in names:
            found[label] = int(number)
    missing = [label for label in labels if label not in found]
    if missing:
        raise _unknown(missing, labels, names)
    return found


def _number(label: Label) -> int:
    """The number that a label is; where one of a column is missing, its tables hold 1.0 for 1."""
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    return int(label) if whole else -1


def _plain(name: object) -> str:
    return re.sub(r"[\s_-]+", "_", str(name).strip()).casefold()


def _unknown(wrong: Sequence[object], labels: Sequence[Label], names: Mapping[int, str]) -> BadInput:
    pairs = _listed([f"{i} = {name!r}" for i, name in names.items()])
    return BadInput(
        f"labels {_listed(_told(wrong))} are not the model's. Labels of the data: {_listed(_told(labels))}; of the "
        f"model: {pairs}. Say which is which in the task's `labels`, as {{data label: model label or number}}."
    )


def _told(labels: Sequence[object]) -> list[str]:
    return [shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…" for shown in map(repr, labels)]


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST
    return ", ".join(parts) if more <= 0 else f"{', '.join(parts[:_MOST])} and {more} more"
