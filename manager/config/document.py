"""YAML 1.2 and JSON read into a tree with positions.

Only `ruamel.yaml`'s composer is used: it gives nodes with marks and resolves `1e-4` to a number. Building the
values here keeps out dates, sets and Python objects, which no configuration key wants.

What is JSON is read by JSON's own rules, into the nodes that YAML's composer makes. JSON is nearly a subset of YAML,
but not where it matters to programs that write configurations: YAML wants keys of at most 1,024 characters with their
colon on the same line, no tabs as indentation, and folds lines at characters that JSON takes as they are.
"""

import json
import math
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode
from ruamel.yaml.reader import ReaderError

from proctor.manager.config.errors import ConfigReport, KeyPath, SourcePosition
from proctor.manager.config.tree import MOST_LEVELS, MOST_NODES, Member, Scalar, TreeNode

_TAG = "tag:yaml.org,2002:"
_BOOLEANS = {"true": True, "false": False}
_BOOLEANS_OF_YAML_1_1 = {"yes": True, "no": False, "on": True, "off": False, "y": True, "n": False}

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^ \t\r\n,\]}]+")
_DECODER = json.JSONDecoder()
_KINDS = {"null": "null", "true": "bool", "false": "bool"}


@dataclass(frozen=True, slots=True)
class TextPosition:
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
    return _JsonComposer(text).document()


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


class _JsonComposer:
    """Walks once through a JSON document that is known to be well-formed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> YamlNode:
        self._skip_space()
        return self._value()

    def _value(self) -> YamlNode:
        """The value that begins at the current position, which then is after it."""
        match self._text[self._at]:
            case "{":
                return self._mapping()
            case "[":
                return self._sequence()
            case '"':
                return self._string()
        return self._literal()

    def _mapping(self) -> MappingNode:
        start, pairs = self._position(), list[tuple[YamlNode, YamlNode]]()
        while self._enter("}"):
            key = self._string()
            self._skip_space()
            self._skip_one()  # the colon
            pairs.append((key, self._value()))
        return MappingNode(f"{_TAG}map", pairs, start, self._position(), flow_style=True)

    def _sequence(self) -> SequenceNode:
        start, items = self._position(), list[YamlNode]()
        while self._enter("]"):
            items.append(self._value())
        return SequenceNode(f"{_TAG}seq", items, start, self._position(), flow_style=True)

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
        start = self._position()
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        return ScalarNode(f"{_TAG}str", value, start, self._position(), style='"')

    def _literal(self) -> ScalarNode:
        """A number, true, false or null."""
        start, found = self._position(), _WORD.match(self._text, self._at)
        assert found is not None, "the document is well-formed"
        word, self._at = found[0], found.end()
        kind = _KINDS.get(word) or ("float" if set(word) & set(".eE") else "int")
        return ScalarNode(f"{_TAG}{kind}", word, start, self._position())

    def _skip_one(self) -> None:
        self._at += 1
        self._skip_space()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "no space is space enough"
        self._at = found.end()

    def _position(self) -> TextPosition:
        line = bisect_right(self._lines, self._at) - 1
        return TextPosition(self._at, line, self._at - self._lines[line])


def read_text(path: Path, report: ConfigReport) -> str | None:
    """The text of a UTF-8 file; None, with the problem reported, when it cannot be read."""
    place = SourcePosition(str(path))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        report.problem(place, (), expected="an existing file", found="no file of this name")
        return None
    except IsADirectoryError:
        report.problem(place, (), expected="a file", found="a directory")
        return None
    except OSError as error:
        report.problem(place, (), expected="a readable file", found=(error.strerror or "an error").lower())
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        place = SourcePosition(str(path), before.count("\n") + 1, len(before) - before.rfind("\n"))
        report.problem(
            place, (), expected="UTF-8 text", found=f"the byte 0x{data[error.start]:02x}", message="save it as UTF-8"
        )
        return None


def parse(text: str, file: str | None, report: ConfigReport) -> TreeNode | None:
    """The tree of one YAML or JSON document; None, with the problem reported, when it is malformed or empty."""
    try:
        root = compose(text) if is_json(text) else _compose_yaml(text)
    except YAMLError as error:
        _report_malformed(error, text, file, report)
        return None
    except RecursionError:
        report.problem(SourcePosition(file), (), expected="fewer nested levels", found="a document nested too deeply")
        return None
    if root is None:
        report.problem(SourcePosition(file, 1, 1), (), expected="a mapping of keys", found="an empty document")
        return None
    return _Builder(file, report).build(root)


def _compose_yaml(text: str) -> Any:
    """The root node; None for an empty document. Raises YAMLError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an anchor used twice is allowed in YAML 1.2
        return YAML(typ="safe", pure=True).compose(text)


def _report_malformed(error: YAMLError, text: str, file: str | None, report: ConfigReport) -> None:
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = SourcePosition(file, mark.line + 1, mark.column + 1) if mark else SourcePosition(file)
        found = (error.problem or "something else").removeprefix("found ")
        if error.context:
            found = f"{found} {error.context}"
    elif isinstance(error, ReaderError):
        before = text[: error.position]
        place = SourcePosition(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        found = f"the control character U+{code:04X}"
    else:
        place, found = SourcePosition(file), str(error)
    report.problem(place, (), expected="well-formed YAML", found=found)


class _Builder:
    """Turns composer nodes into the tree, once for one document."""

    def __init__(self, file: str | None, report: ConfigReport) -> None:
        self._file = file
        self._report = report
        self._open: set[int] = set()
        self._left = MOST_NODES  # aliases of aliases can ask for billions

    def build(self, node: Any, path: KeyPath = ()) -> TreeNode | None:
        """The tree of one node; None when the document cannot be read further (the reason is reported)."""
        place = self._place(node)
        self._left -= 1
        if self._left < 0 or len(path) > MOST_LEVELS or id(node) in self._open:
            if self._left > -MOST_NODES:
                self._report.problem(
                    place, path, expected="a finite configuration", found="aliases or levels without end"
                )
                self._left = -2 * MOST_NODES  # reported once; nothing deeper is read
            return None
        self._open.add(id(node))
        try:
            return self._value(node, place, path)
        finally:
            self._open.discard(id(node))

    def _value(self, node: Any, place: SourcePosition, path: KeyPath) -> TreeNode:
        if isinstance(node, ScalarNode):
            return TreeNode(self._scalar(node, place, path), place, path)
        if isinstance(node, SequenceNode):
            built = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return TreeNode(tuple(item for item in built if item is not None), place, path)
        return TreeNode(self._mapping(node, path), place, path)

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Member]:
        members: dict[str, Member] = {}
        merged: dict[str, Member] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged = {**self._merge(value_node, path), **merged}
                continue
            place = self._place(key_node)
            if not isinstance(key_node, ScalarNode) or key_node.tag != _TAG + "str":
                shown = key_node.value if isinstance(key_node, ScalarNode) else "a list or mapping"
                self._report.problem(
                    place, path, expected="a key that is text", found=str(shown), message="put it in quotes"
                )
                continue
            key = _text(key_node.value)
            if key in members:
                first = members[key].place
                self._report.problem(
                    place,
                    (*path, key),
                    expected="each key once",
                    found=f"a second {key}; the first is at line {first.line}, column {first.column}",
                )
                continue
            value = self.build(value_node, (*path, key))
            if value is not None:
                members[key] = Member(key, place, value)
        return {**merged, **members}

    def _merge(self, node: Any, path: KeyPath) -> dict[str, Member]:
        """What `<<: *anchor` brings in; earlier mappings of a list win over later ones, as YAML has it."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[str, Member] = {}
        for source in sources:
            if isinstance(source, MappingNode):
                built = self.build(source, path)
                merged = {**(built.members if built else {}), **merged}
            else:
                self._report.problem(
                    self._place(source), (*path, "<<"), expected="a mapping to merge", found=str(source.value)
                )
        return merged

    def _scalar(self, node: Any, place: SourcePosition, path: KeyPath) -> Scalar:
        text, kind = _text(node.value), node.tag.removeprefix(_TAG)
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return (_BOOLEANS | _BOOLEANS_OF_YAML_1_1)[text.lower()]
                case "int":
                    return _integer(text)
                case "float":
                    return _real(text)
                case "str" | "timestamp":
                    return text
        except (KeyError, ValueError):
            pass
        self._report.problem(
            place, path, expected="text, a number, true, false or null", found=f"{text!r} tagged {node.tag}"
        )
        return text

    def _place(self, node: Any) -> SourcePosition:
        return SourcePosition(self._file, node.start_mark.line + 1, node.start_mark.column + 1)


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign, body = (-1, digits[1:]) if digits.startswith("-") else (1, digits.removeprefix("+"))
    base = {"0x": 16, "0o": 8, "0b": 2}.get(body[:2], 10)
    return sign * (int(body[2:], base) if base != 10 else int(body))


def _real(text: str) -> float:
    digits = text.replace("_", "").lower()
    if digits.endswith(".inf"):
        return -math.inf if digits.startswith("-") else math.inf
    return math.nan if digits == ".nan" else float(digits)


def _text(value: str) -> str:
    """Text with its surrogate pairs joined: JSON writes what is beyond the 16-bit plane as two escapes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
