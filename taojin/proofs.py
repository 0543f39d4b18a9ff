"""A proof and what comes of it: `taojin check` runs proofs and reports findings.

A proof is a function that returns (value, sentence), or raises BrokenError where the invariant does not hold.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from taojin.core.errors import BadShardError, InputError, InvariantError
from taojin.core.storage import first_line
from taojin.report import print_json

T = TypeVar("T")


class Finding(NamedTuple):
    """status: proved, broken (then `file` names where), or "left out" where something is not there to be compared."""

    invariant: str
    status: str
    detail: str
    file: str = ""


class BrokenError(Exception):
    """An invariant does not hold; `file` is where."""

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(detail)
        self.file = file


class Report:
    """Findings in order; `prove` runs one proof and takes what it raises for what it means."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.measured: dict[str, Any] = {}

    def prove(self, invariant: str, where: str, proof: Callable[[], tuple[T, str]]) -> T | None:
        """The proof's value, or None when it is broken. `where`: the file to name when the proof cannot."""
        try:
            value, detail = proof()
        except BrokenError as broken:
            self.findings.append(Finding(invariant, "broken", str(broken), broken.file))
            return None
        except (OSError, pa.ArrowException, BadShardError, InvariantError, InputError) as error:
            self.findings.append(Finding(invariant, "broken", f"cannot be read: {first_line(error)}", where))
            return None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            detail = f"does not hold what it should ({type(error).__name__}: {first_line(error)})"
            self.findings.append(Finding(invariant, "broken", detail, where))
            return None
        self.findings.append(Finding(invariant, "proved", detail))
        return value

    def leave_out(self, invariant: str, why: str) -> None:
        self.findings.append(Finding(invariant, "left out", why))

    @property
    def broken(self) -> int:
        return sum(finding.status == "broken" for finding in self.findings)


def print_report(report: Report, output: str, *, as_json: bool) -> None:
    if as_json:
        value = {
            "ok": not report.broken,
            "output": output,
            "findings": [finding._asdict() for finding in report.findings],
            "near_duplicates": report.measured or None,
        }
        print_json(value)
        return
    width = max(len(finding.invariant) for finding in report.findings)
    for invariant, status, detail, file in report.findings:
        where = f"{file}: " if file else ""
        print(f"{'BROKEN' if status == 'broken' else status:<8}  {invariant:<{width}}  {where}{detail}")
    proved = sum(finding.status == "proved" for finding in report.findings)
    if report.broken:
        print(f"{report.broken} of {proved + report.broken} invariants are broken")
    else:
        left = len(report.findings) - proved
        print(f"all {proved} invariants hold" + (f"; {left} could not be looked at" if left else ""))
