"""What may be written to a terminal: untrusted text without anything that a terminal would obey.

Names, reasons, file names, notes in locks and logs come from trials, machines and other users. An escape sequence in
one could rewrite the screen, the window's title or the clipboard, or make the terminal answer as if it were typed.
"""

import codecs
import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
_ODD = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"  # directions, line separators, halves of pairs
_UNSAFE = re.compile(f"[{_CONTROLS}{_ODD}]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f{_ODD}]")

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # a control sequence
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # of the operating system: titles, links, the clipboard
    r"|[PX^_][^\x1b]*\x1b\\"  # of a device
    r"|[ -/]*[0-OQ-WYZ\\`-~]"  # two characters, and sets of characters
    r")"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
_HARMLESS = re.compile(r"\x1b\[(?:[0-9;:]*m|[0-2]?K)")
"""Colors, and what clears the rest of a line: progress bars need them."""
_STRAY_ESCAPE = re.compile(rf"(?!{_HARMLESS.pattern})\x1b")
_CONTROLS_IN_LOGS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tab, line feed, return and back space."""
_MOST_BEGUN = 4096
"""Characters of a sequence without an end. It is no sequence, then."""
RESET = "\x1b[0m"


def clean(text: str) -> str:
    """The text with every character that a terminal would obey written out, as `\\x1b`; tabs and line feeds stay."""
    return _UNSAFE.sub(_written_out, text)


def is_clean(text: str) -> bool:
    """Whether `clean` leaves the text as it is."""
    return _UNSAFE.search(text) is None


def clean_json(text: str) -> str:
    """The same JSON with such characters as `\\u009b`; JSON itself writes out those below the space."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LogFilter:
    """Makes pieces of a log fit for a terminal. Colors, returns and back spaces stay; other sequences are dropped.

    A character or a sequence may begin in one piece and end in the next.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = ""
        self._is_colored = False

    def pass_through(self, piece: bytes) -> str:
        """What may be written of a piece."""
        text = self._begun + self._decoder.decode(piece)
        begun = _BEGUN.search(text)
        self._begun = "" if begun is None or len(begun[0]) > _MOST_BEGUN else begun[0]
        text = text[: len(text) - len(self._begun)]
        text = _SEQUENCE.sub(lambda found: found[0] if _HARMLESS.fullmatch(found[0]) else "", text)
        text = _CONTROLS_IN_LOGS.sub("", _STRAY_ESCAPE.sub("", text))
        self._is_colored = self._is_colored or "\x1b[" in text
        return text

    def reset(self) -> str:
        """What ends the log's colors: one may hide what is written after it."""
        return RESET if self._is_colored else ""
