"""JSON read into the nodes that YAML's composer makes, so that a JSON document means what JSON says it means.

JSON is nearly a subset of YAML, but not where it matters to programs that write configurations: YAML wants keys of at
most 1,024 characters with their colon on the same line, no tabs as indentation, and folds lines at characters that JSON
takes as they are.
"""

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import NoReturn

from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode

_TAG = "tag:yaml.org,2002:"
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^ \t\r\n,\]}]+")
_DECODER = json.JSONDecoder()
_KINDS = {"null": "null", "true": "bool", "false": "bool"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text; all three count from 0."""

    index: int
    line: int
    column: int


def is_json(text: str) -> bool:
    """Whether this is one JSON document. NaN and infinities, which Python's reader takes too, are none of JSON's."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def compose(text: str) -> YamlNode:
    """The nodes of a text that `is_json`. Raises RecursionError for one that is nested too deeply."""
    return _Composer(text).document()


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value")


class _Composer:
    """Walks once through a document that is known to be well-formed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> YamlNode:
        self._skip_space()
        return self._value()

    def _value(self) -> YamlNode:
        """The value that begins here; afterwards we stand behind it."""
        match self._text[self._at]:
            case "{":
                return self._mapping()
            case "[":
                return self._sequence()
            case '"':
                return self._string()
        return self._word()

    def _mapping(self) -> MappingNode:
        start, pairs = self._mark(), list[tuple[YamlNode, YamlNode]]()
        while self._enter("}"):
            key = self._string()
            self._skip_space()
            self._skip_one()  # the colon
            pairs.append((key, self._value()))
        return MappingNode(f"{_TAG}map", pairs, start, self._mark(), flow_style=True)

    def _sequence(self) -> SequenceNode:
        start, items = self._mark(), list[YamlNode]()
        while self._enter("]"):
            items.append(self._value())
        return SequenceNode(f"{_TAG}seq", items, start, self._mark(), flow_style=True)

    def _enter(self, end: str) -> bool:
        """Go past a bracket or comma to the next member; False: past the end, there is none."""
        self._skip_space()
        if self._text[self._at] == end:
            self._at += 1
            return False
        self._skip_one()
        if self._text[self._at] == end:  # an empty one
            self._at += 1
            return False
        return True

    def _string(self) -> ScalarNode:
        start = self._mark()
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        return ScalarNode(f"{_TAG}str", value, start, self._mark(), style='"')

    def _word(self) -> ScalarNode:
        """A number, true, false or null."""
        start, found = self._mark(), _WORD.match(self._text, self._at)
        assert found is not None, "the document is well-formed"
        word, self._at = found[0], found.end()
        kind = _KINDS.get(word) or ("float" if set(word) & set(".eE") else "int")
        return ScalarNode(f"{_TAG}{kind}", word, start, self._mark())

    def _skip_one(self) -> None:
        self._at += 1
        self._skip_space()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "no space is space enough"
        self._at = found.end()

    def _mark(self) -> Mark:
        line = bisect_right(self._lines, self._at) - 1
        return Mark(self._at, line, self._at - self._lines[line])
