"""What the kernel says about how busy a machine is."""

from pathlib import Path

from proctor.trial_keeper.daemon import read_system_load
from proctor.trial_keeper.protocol import ReportHeader, SystemLoad, from_json, to_json


def test_load_and_memory_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("12.50 3.0 1.0 2/900 77\n")
    (tmp_path / "meminfo").write_text("MemTotal:  16384000 kB\nMemFree: 10 kB\nMemAvailable: 12288000 kB\nX:\n")
    found = read_system_load(str(tmp_path))
    assert found is not None
    assert (found.load, found.memory_used_mb, found.memory_total_mb) == (12.5, 4000, 16000)
    assert read_system_load() is not None


def test_a_kernel_that_does_not_say_is_no_error(tmp_path: Path) -> None:
    assert read_system_load(str(tmp_path)) is None
    (tmp_path / "loadavg").write_text("")
    assert read_system_load(str(tmp_path)) is None


def test_a_report_of_a_keeper_that_does_not_say_how_busy_its_node_is_is_read() -> None:
    assert from_json(ReportHeader, {"session": "s"}).system is None
    header = ReportHeader("s", system=SystemLoad(1.0, 2, 3, 4))
    assert from_json(ReportHeader, to_json(header)) == header
