"""What a person sees of a run: one living line on a terminal, a line every few seconds elsewhere, or nothing.

In: notes, the numbers of steps, the outcome. Out: text, on stderr or to whoever asks for the lines. Costs 20 µs a step;
the terminal is written to five times a second at most. Leaves to others: the numbers (`gauges`), files (`tracking`).
"""

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TextIO

from taojin.core.progress import LIVE_SECONDS, duration

LOG_SECONDS = 10.0
ENDINGS = {"budget": "stopped by the budget; raise it and run again to go on"}
Step = Callable[[int, int, dict[str, float]], None]


class Console:
    """say: takes lines in place of stderr. Notes stand above the living line. Several threads may use it."""

    def __init__(
        self,
        *,
        currency: str = "",
        budget: float | None = None,
        quiet: bool = False,
        say: Callable[[str], None] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._currency = currency
        self._budget = budget
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._say = say or self._print
        self.live = say is None and not quiet and self._stream.isatty()
        self._shown = -math.inf
        self._line = ""
        self._kept: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What comes next begins a line of its own; the last state stays to be read."""
        with self._lock:
            if self._line:
                self._stream.write("\n")
                self._stream.flush()
                self._line = ""

    def note(self, text: str) -> None:
        if self._quiet:
            return
        with self._lock:
            self._say(text)

    def step(self, step: int, steps: int, numbers: Mapping[str, float]) -> None:
        """The steps done, those of the run, and a row of numbers."""
        if self._quiet:
            return
        with self._lock:
            # A validation is of interest until the next.
            self._kept |= {name: value for name, value in numbers.items() if name == "validation_loss"}
            now = time.monotonic()
            if now - self._shown < (LIVE_SECONDS if self.live else LOG_SECONDS):
                return
            self._shown = now
            status = {"step": step, "steps": steps, **self._kept, **numbers}
            text = line(status, self._currency, self._budget)
            if self.live:
                self._line = text
                self._draw()
            else:
                self._say(text)

    def _print(self, text: str) -> None:
        # Where a line lives it is overwritten, and written again below.
        self._stream.write(f"\r\x1b[K{text}\n" if self._line else f"{text}\n")
        self._draw()

    def _draw(self) -> None:
        from rich.cells import set_cell_size

        if self._line:
            # A longer one would wrap, and \r would find its last row only.
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{set_cell_size(self._line, width)}")
        self._stream.flush()


def every(seconds: float, show: Callable[[dict[str, Any]], None]) -> Step:
    """Passes on a step at most this often, with the last validation of those that it did not."""
    shown, kept = -math.inf, {}

    def on_step(step: int, steps: int, numbers: dict[str, float]) -> None:
        nonlocal shown
        kept.update({name: value for name, value in numbers.items() if name == "validation_loss"})
        if time.monotonic() - shown >= seconds:
            shown = time.monotonic()
            show({"step": step, "steps": steps, **kept, **numbers})

    return on_step


def line(status: Mapping[str, Any], currency: str = "", budget: float | None = None) -> str:
    """`step 120/5,000 · loss 3.2145 · 5,120 tokens/s · MFU 38.0 % · 12.30 of 100.00 yuan · 2 h 05 min left`.

    status: step, steps, and a row of numbers.
    """
    parts = [f"step {status['step']:,}/{status['steps']:,}", *_losses(status)]
    parts.append(f"{status['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in status:
        parts.append(f"MFU {status['mfu'] * 100:.1f} %")
    parts += _money(status, currency, budget)
    left = status.get("eta_seconds", (status["steps"] - status["step"]) * status["step_seconds"])
    return " · ".join([*parts, f"{duration(left)} left"])


def ending(outcome: Mapping[str, Any], currency: str = "", budget: float | None = None) -> str:
    """How a run ended and what it took: `5,000 of 5,000 steps · loss 2.1 · 3 h 12 min · …: finished`."""
    numbers = dict(outcome.get("numbers") or {})
    if outcome["loss"] is not None:
        numbers["loss"] = outcome["loss"]
    parts = [f"{outcome['steps']:,} of {outcome['total_steps']:,} steps", *_losses(numbers)]
    if "seconds" in numbers:
        parts.append(duration(numbers["seconds"]))
    if "tokens_per_second" in numbers:
        parts.append(f"{numbers['tokens_per_second']:,.0f} tokens/s")
    if "device_hours" in numbers:
        parts.append(f"{numbers['device_hours']:,.2f} device-hours")
    parts += _money(numbers, currency, budget)
    return f"{' · '.join(parts)}: {ENDINGS.get(outcome['reason'], outcome['reason'])}"


def _losses(numbers: Mapping[str, float]) -> list[str]:
    names = {"loss": "loss", "validation_loss": "validation"}
    return [f"{word} {numbers[name]:.4f}" for name, word in names.items() if name in numbers]


def _money(numbers: Mapping[str, float], currency: str, budget: float | None) -> list[str]:
    if "money" not in numbers:
        return []
    limit = "" if budget is None else f" of {budget:,.2f}"
    return [f"{numbers['money']:,.2f}{limit} {currency}"]
