import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proctor.manager.config.document import parse, read_text
from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.tree import find, plain


def parsed(text: str) -> object:
    report = ConfigReport()
    root = parse(text, "file.yml", report)
    assert report.problems == []
    assert root is not None
    return plain(root)


def problem_of(text: str) -> str:
    report = ConfigReport()
    parse(text, "file.yml", report)
    (problem,) = report.problems
    return str(problem)


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "[1e-4, 1e3, 0x1F, 0o17, -5, .5, -.inf, true, False, null, ~, yes, 2020-01-01, 1:30, '7', !!str 8]"
    assert parsed(text) == [
        *(1e-4, 1e3, 31, 15, -5, 0.5, -math.inf, True, False, None, None),
        *("yes", "2020-01-01", "1:30", "7", "8"),
    ]
    assert math.isnan(parsed("[.nan]")[0])  # type: ignore[index]


def test_numbers_keep_their_type() -> None:
    assert [type(item) for item in parsed("[1, 1.0, 1e0]")] == [int, float, float]  # type: ignore[attr-defined]


def test_anchors_and_merges_are_followed() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: {<<: [{x: 5}, *a]}\n"
    assert parsed(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
        "d": {"x": 5, "y": 2},
    }


def test_json_indented_by_tabs_is_read_with_its_surrogate_pairs() -> None:
    assert parsed('{\n\t"a": "\\ud83d\\ude00\\t",\n\t"b": [1e-4]\n}') == {"a": "😀\t", "b": [1e-4]}


@pytest.mark.parametrize(
    "text",
    [
        '{"' + "k" * 1030 + '": 1}',  # YAML ends a key on one line at 1,024 characters,
        '{"a"\n: 1}',  # and wants its colon on the same line,
        '{"a": "one\u2028 two\x85 three"}',  # folds lines where JSON sees none,
        '{"a": "\x7f"}',  # and knows characters that may not stand in a document
        '{"<<": {"a": 1}, "b": "c\\/d"}',
        ' [ ] ',
        '\t{"a":{ },"b":[[],[1,-0,-1.5E+3,1E400],true,false,null]}\r\n',
    ],
)  # fmt: skip
def test_what_json_allows_and_yaml_does_not_is_read_as_json(text: str) -> None:
    assert parsed(text) == json.loads(text)


def test_what_only_python_takes_for_json_is_read_as_yaml() -> None:
    assert parsed('{"a": NaN}') == {"a": "NaN"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
).filter(lambda value: value is not None)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_JSON, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
@example({"k" * 1030: 1}, True, None)
@example({"k" * 1030: {"\x85 \u2028 \x7f": []}}, False, "\t")
def test_every_json_document_reads_as_json_does(value: object, ascii_only: bool, indent: int | str | None) -> None:
    text = json.dumps(value, allow_nan=False, ensure_ascii=ascii_only, indent=indent)
    assert parsed(text) == json.loads(text)


def test_values_and_keys_of_json_know_their_position() -> None:
    root = parse('{\n\t"a": 1, "bee": [true,\n "x y"]\n}', "file.json", ConfigReport())
    assert root is not None
    node, _, complete = find(root, ("bee", 1))
    assert (str(node.place), node.path, complete) == ("file.json:3:2", ("bee", 1), True)
    assert str(root.members["bee"].place) == "file.json:2:10"
    assert str(root.members["a"].node.place) == "file.json:2:7"


def test_values_and_keys_know_their_position() -> None:
    root = parse("a: 1\nb:\n  - c: [x, y]\n", "file.yml", ConfigReport())
    assert root is not None
    node, _, complete = find(root, ("b", 0, "c", 1))
    assert (str(node.place), node.path, complete) == ("file.yml:3:12", ("b", 0, "c", 1), True)
    assert str(root.members["b"].place) == "file.yml:2:1"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1\nb: 2\n", "file.yml:2:2: expected well-formed YAML, found "),
        ("a: 1\n b: 2\n", "file.yml:2:3: expected well-formed YAML, found "),
        ("a: 'x\n", "file.yml:2:1: expected well-formed YAML, found "),
        ("a:\n\tb: 1\n", "file.yml:2:1: expected well-formed YAML, found "),
        ("a: \x01\n", "file.yml:1:4: expected well-formed YAML, found the control character U+0001"),
        ("a: 1\n---\nb: 2\n", "file.yml:2:1: expected well-formed YAML, found "),
        ("a: *b\n", "file.yml:1:4: expected well-formed YAML, found "),
        ("", "file.yml:1:1: expected a mapping of keys, found an empty document"),
        ("# only a comment\n", "file.yml:1:1: expected a mapping of keys, found an empty document"),
        ("a: 1\nb: 2\na: 3\n", "file.yml:3:1: a: expected each key once, found a second a; the first is at line 1"),
        ("1: x\n", "file.yml:1:1: expected a key that is text, found 1; put it in quotes"),
        ("[a]: x\n", "file.yml:1:1: expected a key that is text, found a list or mapping"),
        ("a: &a [*a]\n", "file.yml:1:4: a[0]: expected a finite configuration"),
        ("a: !!int x\n", "file.yml:1:4: a: expected text, a number, true, false or null, found 'x' tagged"),
        ("a: !!python/name:os.system x\n", "file.yml:1:4: a: expected text, a number"),
        (
            '{"a": 1,\n "a": 2}',
            "file.yml:2:2: a: expected each key once, found a second a; the first is at line 1, column 2",
        ),
        ("a: {<<: 1}\n", "file.yml:1:9: a.<<: expected a mapping to merge, found 1"),
    ],
)
def test_malformed_documents_are_one_problem_with_a_position(text: str, start: str) -> None:
    assert problem_of(text).startswith(start)


@pytest.mark.slow
def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "expected a finite configuration" in problem_of("\n".join(lines))


def test_levels_without_end_are_stopped() -> None:
    assert "found" in problem_of("a: " + "[" * 400 + "]" * 400)


def test_a_file_that_is_not_utf8_is_refused_with_the_place_of_the_byte(tmp_path: Path) -> None:
    file, report = tmp_path / "latin.yml", ConfigReport()
    file.write_bytes(b"a: 1\nb: caf\xe9\n")
    assert read_text(file, report) is None
    assert str(report.problems[0]) == f"{file}:2:7: expected UTF-8 text, found the byte 0xe9; save it as UTF-8"


def test_a_byte_order_mark_and_line_ends_of_windows_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "windows.yml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert parsed(read_text(file, ConfigReport()) or "") == {"a": 1, "b": 2}


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    missing, folder = ConfigReport(), ConfigReport()
    assert read_text(tmp_path / "none.yml", missing) is None
    assert read_text(tmp_path, folder) is None
    assert str(missing.problems[0]) == f"{tmp_path / 'none.yml'}: expected an existing file, found no file of this name"
    assert str(folder.problems[0]) == f"{tmp_path}: expected a file, found a directory"
