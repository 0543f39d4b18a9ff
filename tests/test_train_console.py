"""What a person sees of a run, on a terminal and elsewhere."""

import io
from typing import Any

import pytest

from taojin.train import console
from taojin.train.console import Console, ending, every, line

ROW: dict[str, float] = {"loss": 3.25, "tokens_per_second": 5120.0, "step_seconds": 1.5, "eta_seconds": 7500.0}
OUTCOME: dict[str, Any] = {"steps": 12, "total_steps": 100, "loss": 3.25, "reason": "finished", "numbers": {}}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self, width: int = 200) -> list[str]:
        """What a terminal makes of it."""
        rows = [""]
        for part in self.getvalue().replace("\n", "\n\r").split("\r"):
            text = part.replace("\x1b[K", "")
            erased = "\x1b[K" in part
            newline = text.endswith("\n")
            text = text.rstrip("\n")
            assert len(text) <= width, "wraps"
            rows[-1] = text if erased else text + rows[-1][len(text) :]
            if newline:
                rows.append("")
        return [row.rstrip() for row in rows]


def test_a_line_says_how_far_how_fast_how_dear_and_how_long() -> None:
    status = {"step": 120, "steps": 5000, **ROW}
    assert line(status) == "step 120/5,000 · loss 3.2500 · 5,120 tokens/s · 2 h 05 min left"
    assert line({**status, "validation_loss": 3.5, "mfu": 0.381, "money": 12.3}, "yuan", 100.0) == (
        "step 120/5,000 · loss 3.2500 · validation 3.5000 · 5,120 tokens/s · MFU 38.1 % · 12.30 of 100.00 yuan · "
        "2 h 05 min left"
    )


def test_the_end_says_what_the_run_took() -> None:
    numbers = {"seconds": 7500.0, "tokens_per_second": 5120.0, "device_hours": 33.333, "validation_loss": 3.5}
    assert ending({**OUTCOME, "numbers": numbers}) == (
        "12 of 100 steps · loss 3.2500 · validation 3.5000 · 2 h 05 min · 5,120 tokens/s · 33.33 device-hours: finished"
    )
    assert ending({**OUTCOME, "loss": None}) == "12 of 100 steps: finished"
    told = ending({**OUTCOME, "reason": "budget", "numbers": {"money": 99.9}}, "yuan", 100.0)
    assert told.endswith("99.90 of 100.00 yuan: stopped by the budget; raise it and run again to go on")


def test_a_terminal_has_one_living_line_below_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(console, "LIVE_SECONDS", 0.0)
    terminal = Terminal()
    with Console(stream=terminal) as shown:
        shown.note("2 parameters")
        shown.step(1, 5000, {**ROW, "validation_loss": 3.5})
        shown.note("a note that is longer than the line was, to be whole above it")
        shown.step(2, 5000, ROW)
    terminal.write("next\n")
    assert terminal.screen() == [
        "2 parameters",
        "a note that is longer than the line was, to be whole above it",
        # Cut, as a line that wraps cannot be written over; the validation stays until the next.
        "step 2/5,000 · loss 3.2500 · validation 3.5000 · 5,120 toke",
        "next",
        "",
    ]


def test_elsewhere_a_line_comes_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("taojin.train.console.time.monotonic", lambda: now)
    file = io.StringIO()
    with Console(stream=file) as shown:
        for step in range(1, 26):
            now += 1.0
            shown.step(step, 30, ROW)
        shown.note("a note")
    lines = file.getvalue().splitlines()
    assert [text.split(" ·")[0] for text in lines] == ["step 1/30", "step 11/30", "step 21/30", "a note"]


def test_quiet_is_nothing() -> None:
    terminal = Terminal()
    with Console(quiet=True, stream=terminal) as shown:
        shown.note("a note")
        shown.step(1, 2, ROW)
    assert terminal.getvalue() == ""


def test_lines_go_to_whoever_asks_for_them() -> None:
    lines: list[str] = []
    terminal = Terminal()
    with Console(say=lines.append, stream=terminal, currency="yuan") as shown:
        shown.note("a note")
        shown.step(1, 2, {**ROW, "money": 1.5})
    assert lines == ["a note", "step 1/2 · loss 3.2500 · 5,120 tokens/s · 1.50 yuan · 2 h 05 min left"]
    assert terminal.getvalue() == ""


def test_a_validation_is_passed_on_though_its_step_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("taojin.train.console.time.monotonic", lambda: now)
    passed: list[dict[str, Any]] = []
    on_step = every(5.0, passed.append)
    on_step(1, 9, ROW)
    on_step(2, 9, {**ROW, "validation_loss": 3.5})
    now += 5.0
    on_step(3, 9, ROW)
    assert [(status["step"], status.get("validation_loss")) for status in passed] == [(1, None), (3, 3.5)]
