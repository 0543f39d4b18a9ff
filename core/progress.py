"""Progress of a stage on stderr: one living line on a terminal, plain lines every few seconds otherwise, or nothing."""

import sys
import time
from typing import Any, TextIO

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.2


class Progress:
    """Counts what finished units report: `documents`, `bytes` and `removed` in their stats, where a stage has them."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.live = not quiet and self.stream.isatty()
        self._width = 0

    def start(self, stage: str, total: int, done: int) -> None:
        """Begin a stage of `total` items of which `done` stand from an earlier run; what follows a ~ is not shown."""
        stage = stage.partition("~")[0]
        self.stage, self.total, self.finished, self.resumed = stage, total, done, done
        self.documents = self.bytes = self.removed = 0
        self.started = self._shown = time.monotonic()
        if done and not self.quiet:
            self.note(f"{stage:<10} {done}/{total} done by an earlier run")

    def advance(self, stats: dict[str, Any]) -> None:
        self.finished += 1
        self.documents += stats.get("documents", 0)
        self.bytes += stats.get("bytes", 0)
        self.removed += stats.get("removed", 0)
        now = time.monotonic()
        if not self.quiet and now - self._shown >= (LIVE_SECONDS if self.live else PLAIN_SECONDS):
            self._shown = now
            self._write(self.line(now), final=False)

    def end(self) -> None:
        if not self.quiet and self.finished > self.resumed:
            self._write(self.line(time.monotonic()), final=True)

    def note(self, message: str) -> None:
        """A line of its own, whatever else is shown."""
        if not self.quiet:
            self._write(message, final=True)

    def line(self, now: float) -> str:
        seconds = max(now - self.started, 1e-6)
        parts = [f"{self.stage:<10} {self.finished}/{self.total}"]
        if self.documents:
            parts.append(f"{self.documents:,} documents, {self.documents / seconds:,.0f}/s")
        if self.bytes:
            parts.append(f"{self.bytes / 1e6 / seconds:,.1f} MB/s")
        if self.removed:
            parts.append(f"{self.removed:,} removed")
        fresh = self.finished - self.resumed
        if fresh and self.finished < self.total:
            parts.append(f"{duration((self.total - self.finished) * seconds / fresh)} left")
        else:
            parts.append(duration(seconds))
        return " · ".join(parts)

    def _write(self, text: str, *, final: bool) -> None:
        if self.live:
            padding = " " * max(0, self._width - len(text))
            self.stream.write(f"\r{text}{padding}" + ("\n" if final else ""))
            self._width = 0 if final else len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
