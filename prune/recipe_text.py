"""A recipe's text becomes plain data and the line of every field; what is not a recipe is refused fast.

Only mappings, lists, text, numbers, true/false and null are read: no tags, no merges, no objects. Size, depth
and aliases are bounded while the text is read, so that no file can cost more than about a second.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headwise.prune.recipe_errors import Mistake, Path, Places, RecipeError, printable, shown

LIMIT_BYTES = 256 * 1024
LIMIT_EVENTS = 10_000
LIMIT_DEPTH = 16
LIMIT_ALIASES = 8

_PLAIN = "tag:yaml.org,2002:"
# Dates are text in a recipe: a revision or a file may be named like one.
_AS_TEXT = {_PLAIN + "str", _PLAIN + "timestamp"}
_AS_VALUE = {_PLAIN + "int", _PLAIN + "float", _PLAIN + "bool", _PLAIN + "null"}

_HALF = "the text holds half of a character (a lone surrogate)"


@dataclass
class Source:
    """What a text said: the data, where each field stands, and what was wrong with the text itself.

    `lost` are the fields whose value could not be read: that nothing stands there is no second mistake.
    """

    data: dict[str, Any]
    places: Places
    mistakes: list[Mistake] = field(default_factory=list)
    lost: set[Path] = field(default_factory=set)


def read_file(path: FilePath) -> str:
    """The text of a recipe file.

    Raises:
        RecipeError: it is too large, not UTF-8, or cannot be read.
    """
    where = printable(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); give a recipe file or the name of a shipped recipe"
        raise RecipeError([Mistake((), problem, place=where)], where) from error
    _refuse_large(len(content), where)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError([Mistake((), "expected UTF-8 text", place=f"{where}:{line}")], where) from error


def read(text: str, where: str = "recipe") -> Source:
    r"""The data of a recipe text with the line of each field.

    Duplicate keys, unusable values and the like are collected in `mistakes`, so that they can be told
    together with what is wrong about the fields.

    Raises:
        RecipeError: the text is not YAML, not a mapping, or exceeds a limit.

    >>> source = read("schema: 1\nseed: 3", "my.yaml")
    >>> source.data, source.places.of(("seed",))
    ({'schema': 1, 'seed': 3}, 'my.yaml:2')
    """
    where = printable(where)
    _refuse_large(len(text), where)
    root = _compose(text, where)
    reader = _Reader(where)
    data = reader.value(root, (), ())
    if not isinstance(data, dict):
        got = "nothing" if root is None else shown(data)
        problem = f"expected a mapping that begins with 'schema: 1', got {got}"
        raise RecipeError([*reader.mistakes, Mistake((), problem, place=f"{where}:1")], where)
    return Source(data, Places(where, reader.lines), reader.mistakes, reader.lost)


def read_value(text: str, place: str) -> Any:
    """The value on the right of `--set key=value`: YAML in one line.

    Raises:
        RecipeError: it is not YAML.

    >>> read_value("[1, 8]", "--set")
    [1, 8]
    """
    _refuse_large(len(text), place)
    reader = _Reader(place)
    value = reader.value(_compose(text, place), (), ())
    if reader.mistakes:
        mistakes = [Mistake(m.path, m.problem, m.valid, place) for m in reader.mistakes]
        raise RecipeError(mistakes, place)
    return value


def _refuse_large(size: int, where: str) -> None:
    if size > LIMIT_BYTES:
        problem = f"larger than {LIMIT_BYTES // 1024} kB: this is no recipe; a recipe takes 10 to 30 lines"
        raise RecipeError([Mistake((), problem, place=where)], where)


def _compose(text: str, where: str) -> Node | None:
    """The node graph of one document, after a first look that bounds it."""
    try:
        _bound(text, where)
        root: Node | None = YAML(typ="safe", pure=True).compose(io.StringIO(text))
        return root
    except RecipeError:
        raise
    except (YAMLError, ValueError, RecursionError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        said = error.problem or error.context if isinstance(error, MarkedYAMLError) else None
        problem = f"not YAML: {printable(said or 'unreadable text')}"
        raise RecipeError([Mistake((), problem, place=where + line)], where) from error


def _bound(text: str, where: str) -> None:
    """Refuse what would take long or blow up, from the stream of parse events alone."""
    depth = aliases = documents = 0
    for count, event in enumerate(YAML(typ="safe", pure=True).parse(io.StringIO(text))):
        name = type(event).__name__
        depth += name.endswith(("SequenceStartEvent", "MappingStartEvent"))
        depth -= name.endswith(("SequenceEndEvent", "MappingEndEvent"))
        aliases += name == "AliasEvent"
        documents += name == "DocumentStartEvent"
        problem = ""
        if depth > LIMIT_DEPTH:
            problem = f"nested deeper than {LIMIT_DEPTH} levels; a recipe has at most four"
        elif aliases > LIMIT_ALIASES:
            problem = f"more than {LIMIT_ALIASES} aliases (*name); write the values out"
        elif count > LIMIT_EVENTS:
            problem = f"more than {LIMIT_EVENTS} values; a recipe takes 10 to 30 lines"
        elif documents > 1:
            problem = "a second document begins (---); give one recipe a file"
        if problem:
            place = f"{where}:{event.start_mark.line + 1}"
            raise RecipeError([Mistake((), problem, place=place)], where)


class _Reader:
    """Turns nodes into data and remembers lines."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[Path, str] = {}
        self.mistakes: list[Mistake] = []
        self.lost: set[Path] = set()
        self._constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node | None, path: Path, around: tuple[int, ...]) -> Any:
        """The data below a node; `around` are the nodes that it stands in, to see an alias of itself."""
        if node is None:
            return None
        self.lines.setdefault(path, self._place(node))
        if id(node) in around:
            return self._refuse(node, path, "an alias (*name) of the value that it stands in")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (_PLAIN + "map", _PLAIN + "seq"):
            return self._refuse(node, path, _tagged(node))
        if isinstance(node, SequenceNode):
            inside = (*around, id(node))
            return [self.value(item, (*path, index), inside) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return self._mapping(node, path, (*around, id(node)))
        return self._refuse(node, path, "cannot be read")

    def _mapping(self, node: MappingNode, path: Path, around: tuple[int, ...]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in data:
                first = self.lines[here].removeprefix(f"{self.where}:")
                problem = f"the same key twice (first in line {first}); keep one of them"
                self.mistakes.append(Mistake(here, problem, place=self._place(key_node)))
                continue
            self.lines[here] = self._place(key_node)
            data[key] = self.value(value_node, here, around)
        return data

    def _key(self, node: Node, path: Path) -> str | None:
        """A key as text; a whole number is taken as written: it names a site of a single stack."""
        if isinstance(node, ScalarNode) and node.tag in {*_AS_TEXT, _PLAIN + "int"}:
            return self._text(node, path)
        got = printable(node.value) if isinstance(node, ScalarNode) else "a list or mapping"
        self._refuse(node, path, f"expected text as a key, got {got}; put it in quotes")
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        if node.tag in _AS_TEXT:
            return self._text(node, path)
        if node.tag not in _AS_VALUE:
            return self._refuse(node, path, _tagged(node))
        try:
            value = self._constructor.construct_object(node)
        except (YAMLError, ValueError, OverflowError, KeyError, TypeError, IndexError):
            return self._refuse(node, path, f"{shown(node.value)} is not a {node.tag.removeprefix(_PLAIN)}")
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(node, path, f"expected a finite number, got {printable(node.value)}")
        if isinstance(value, int) and abs(value) >= 2**63:
            return self._refuse(node, path, f"expected a number below 2^63, got {shown(value)}")
        return value

    def _text(self, node: ScalarNode, path: Path) -> str | None:
        if _encodable(node.value):
            return str(node.value)
        self._refuse(node, path, _HALF)
        return None

    def _refuse(self, node: Node, path: Path, problem: str) -> None:
        self.mistakes.append(Mistake(path, problem, place=self._place(node)))
        self.lost.add(path)

    def _place(self, node: Node) -> str:
        return f"{self.where}:{node.start_mark.line + 1}"


def _tagged(node: Node) -> str:
    return f"the tag {printable(node.tag)} is not allowed; write plain values"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
