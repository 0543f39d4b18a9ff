"""Progress on stderr (core/progress.py): one living line on a terminal, plain lines otherwise, nothing when quiet."""

import io

import pytest

from taojin.core.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("taojin.core.progress.time.monotonic", lambda: now[0])
    return now


def run(shown: Progress, clock: list[float], units: int = 4, seconds: float = 6.0) -> None:
    shown.start("scan", units, 0)
    for _ in range(units):
        clock[0] += seconds
        shown.advance({"documents": 600, "bytes": 6_000_000, "removed": 5})
    shown.end()


def test_a_stage_ends_with_what_it_did(clock: list[float]) -> None:
    stream = io.StringIO()
    run(Progress(stream=stream), clock)
    last = stream.getvalue().splitlines()[-1]
    assert last == "scan       4/4 · 2,400 documents, 100/s · 1.0 MB/s · 20 removed · 24.0 s"


def test_plain_lines_come_every_few_seconds_and_tell_the_time_left(clock: list[float]) -> None:
    stream = io.StringIO()
    run(Progress(stream=stream), clock)
    assert stream.getvalue().splitlines()[0].startswith("scan       2/4 ")
    assert stream.getvalue().splitlines()[0].endswith("· 12.0 s left")
    assert "\r" not in stream.getvalue()


def test_a_terminal_has_one_living_line_per_stage(clock: list[float]) -> None:
    stream = Terminal()
    run(Progress(stream=stream), clock)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") == 5


def test_quiet_means_nothing(clock: list[float]) -> None:
    stream = Terminal()
    shown = Progress(stream=stream, quiet=True)
    run(shown, clock)
    shown.note("warning: …")
    assert stream.getvalue() == ""


def test_what_an_earlier_run_did_is_said_and_not_timed(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = Progress(stream=stream)
    shown.start("scan", 10, 8)
    clock[0] += 20
    shown.advance({"documents": 100})
    assert stream.getvalue().splitlines() == [
        "scan       8/10 done by an earlier run",
        "scan       9/10 · 100 documents, 5/s · 20.0 s left",
    ]


def test_a_stage_that_was_done_has_no_closing_line(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = Progress(stream=stream)
    shown.start("write~abc", 3, 3)
    shown.end()
    assert stream.getvalue() == "write      3/3 done by an earlier run\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7265, "2 h 01 min")],
)
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
