"""The filter language: from a text such as `status = SUCCEEDED and lr < 1e-3` to a syntax tree. Pure.

    filter     = and-term { "or" and-term }
    and-term   = factor { "and" factor }
    factor     = "not" factor | "(" filter ")" | test
    test       = column ( "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" ) value
               | column [ "not" ] "in" "(" value { "," value } ")"
               | column "is" [ "not" ] "null"
    column     = word | `any text in backticks`
    value      = word | "text" | 'text'

A word is anything without spaces, quotes, parentheses, commas and operators: a number, a status, a name, a time. What a
value means depends on its column (`columns.py`). A test of a value that is missing is false, and `not` makes it true.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proctor.manager.store.errors import QueryRefused

MAX_LENGTH = 4_000
"""Characters of a filter."""
MAX_TESTS = 200
MAX_DEPTH = 50
"""Levels of parentheses and of `not`."""
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "~")
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null"})
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<column>`[^`]*`)
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<symbol><=|>=|!=|==|<>|[=<>~(),])
  | (?P<word>[^\s()<>=!~,"'`]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_INSTEAD = {"==": "=", "<>": "!="}


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column as it was written, and where."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it was written, and where; `number` is what a word reads as, if it is one."""

    text: str
    position: int
    is_word: bool = False
    number: int | float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; the operator is one of COMPARISONS."""

    column: ColumnName
    operator: str
    operator_position: int
    value: Literal


@dataclass(frozen=True, slots=True)
class Membership:
    """`column in (value, …)`."""

    column: ColumnName
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column is null`: the trial has no such value."""

    column: ColumnName


@dataclass(frozen=True, slots=True)
class Not:
    """What `operand` is not."""

    operand: "Filter"


@dataclass(frozen=True, slots=True)
class AllOf:
    """`… and …`."""

    operands: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`… or …`."""

    operands: tuple["Filter", ...]


Filter = Comparison | Membership | IsNull | Not | AllOf | AnyOf


def columns_of(filter: Filter) -> Iterator[str]:
    """The names of the columns that a filter tests, as they were written."""
    match filter:
        case AllOf(operands) | AnyOf(operands):
            for operand in operands:
                yield from columns_of(operand)
        case Not(operand):
            yield from columns_of(operand)
        case Comparison(column) | Membership(column) | IsNull(column):
            yield column.name


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)

    @property
    def keyword(self) -> str:
        """The word in lower case, if it is one of the language's."""
        lower = self.text.lower()
        return lower if self.kind == "word" and lower in _KEYWORDS else ""


def parse(text: str) -> Filter:
    """The syntax tree of a filter. Raises QueryRefused with the place of the first mistake."""
    if len(text) > MAX_LENGTH:
        raise refuse(MAX_LENGTH, f"at most {MAX_LENGTH:,} characters", f"{len(text):,}")
    return _Parser(_tokens(text)).parse()


def refuse(position: int, expected: str, found: str, *, nearest: str | None = None) -> QueryRefused:
    """The error for a filter, with the place of the mistake, counted in characters from 0."""
    return QueryRefused("filter", position=position, expected=expected, found=found, nearest=nearest)


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refuse_character(text, position)
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match.group(), position))
        position = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _refuse_character(text: str, position: int) -> QueryRefused:
    character = text[position]
    if character == "!":
        return refuse(position, "!= or not", "'!'")
    return refuse(position, f"a closing {character}", "the end")


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._tests = 0

    def parse(self) -> Filter:
        found = self._any_of(0)
        if self._next.kind != "end":
            raise refuse(self._next.position, "and, or, or the end", str(self._next))
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._next
        self._index += 1
        return token

    def _take_keyword(self, keyword: str) -> bool:
        if self._next.keyword != keyword:
            return False
        self._index += 1
        return True

    def _take_symbol(self, symbol: str, expected: str) -> None:
        if self._next.text != symbol or self._next.kind != "symbol":
            raise refuse(self._next.position, expected, str(self._next))
        self._index += 1

    def _any_of(self, depth: int) -> Filter:
        operands = [self._all_of(depth)]
        while self._take_keyword("or"):
            operands.append(self._all_of(depth))
        return operands[0] if len(operands) == 1 else AnyOf(tuple(operands))

    def _all_of(self, depth: int) -> Filter:
        operands = [self._factor(depth)]
        while self._take_keyword("and"):
            operands.append(self._factor(depth))
        return operands[0] if len(operands) == 1 else AllOf(tuple(operands))

    def _factor(self, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise refuse(self._next.position, f"at most {MAX_DEPTH} levels", "more")
        if self._take_keyword("not"):
            return Not(self._factor(depth + 1))
        if self._next.text == "(" and self._next.kind == "symbol":
            self._take()
            inner = self._any_of(depth + 1)
            self._take_symbol(")", "and, or, or a closing parenthesis")
            return inner
        return self._test()

    def _test(self) -> Filter:
        column = self._column()
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise refuse(column.position, f"at most {MAX_TESTS} tests", "more")
        token = self._take()
        if token.kind == "symbol" and token.text in COMPARISONS:
            return Comparison(column, token.text, token.position, self._value())
        if token.keyword == "is":
            return self._null(column)
        if token.keyword == "in":
            return Membership(column, self._list())
        if token.keyword == "not" and self._take_keyword("in"):
            return Not(Membership(column, self._list()))
        instead = _INSTEAD.get(token.text)
        expected = instead if instead is not None else f"one of {' '.join(COMPARISONS)}, in, or is"
        raise refuse(token.position, f"{expected} after {column.name}", str(token))

    def _column(self) -> ColumnName:
        token = self._take()
        if token.kind == "column" and len(token.text) > 2:
            return ColumnName(token.text[1:-1], token.position)
        if token.kind == "word" and not token.keyword and not _NUMBER.fullmatch(token.text):
            return ColumnName(token.text, token.position)
        raise refuse(token.position, "a column, such as status, value or the name of a parameter", str(token))

    def _null(self, column: ColumnName) -> Filter:
        is_negated = self._take_keyword("not")
        if not self._take_keyword("null"):
            raise refuse(self._next.position, "null or not null after is", str(self._next))
        return Not(IsNull(column)) if is_negated else IsNull(column)

    def _list(self) -> tuple[Literal, ...]:
        self._take_symbol("(", "an opening parenthesis after in")
        values = [self._value()]
        while self._next.text == "," and self._next.kind == "symbol":
            self._take()
            values.append(self._value())
        self._take_symbol(")", "a comma or a closing parenthesis")
        return tuple(values)

    def _value(self) -> Literal:
        token = self._take()
        if token.kind == "text":
            return Literal(_ESCAPE.sub(r"\1", token.text[1:-1]), token.position)
        if token.keyword == "null":
            raise refuse(token.position, "a value; write `is null` for one that is missing", str(token))
        if token.kind != "word" or token.keyword:
            raise refuse(token.position, 'a value: a number, a word, or a "text"', str(token))
        return Literal(token.text, token.position, True, _read_number(token))


def _read_number(token: _Token) -> int | float | None:
    if not _NUMBER.fullmatch(token.text):
        return None
    number = float(token.text)
    if not math.isfinite(number):
        raise refuse(token.position, "a number that a double can hold", str(token))
    is_whole = token.text.lstrip("+-").isdecimal() and abs(number) < 2**53
    return int(token.text) if is_whole else number
