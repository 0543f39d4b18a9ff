"""Re-open an output and prove what a run promises: `taojin check OUT`.

In: OUT; WORK (default: OUT.work) where it stands; the input where it stands. Out: one line per invariant on stdout.
Cost: every byte of OUT and WORK is read once for its checksum, `cluster`, `cluster_size`, `component`, decisions and
ledger once more; of the input only what the sample touches. Memory: 1 byte a document and 16 a removal, streamed by
unit otherwise.

A broken invariant names its file; the others are still looked at. Nothing is changed. The proofs themselves:
`taojin.proofs_of_output`, `taojin.proofs_of_work`, `taojin.proofs_of_input`.
"""

from typing import Annotated, Any

from pydantic import Field
from tyro.conf import Positional, arg

from taojin.core.config import Config
from taojin.core.errors import InputError
from taojin.core.storage import Folder
from taojin.core.uris import with_suffix
from taojin.frozen import MARKER
from taojin.pipeline import MANIFEST
from taojin.proofs import Report, print_report
from taojin.proofs_of_input import check_input
from taojin.proofs_of_output import prove_columns, prove_conservation, prove_files, read_manifest
from taojin.proofs_of_rules import prove_rules
from taojin.proofs_of_work import (
    check_index,
    prove_checksums,
    prove_clusters,
    prove_ledger,
    prove_output_rows,
    prove_work,
)


class CheckConfig(Config):
    """Prove an output: files, counts, clusters, ledger, a sample against the input. Exit status 1 if one is broken."""

    output: Positional[str]
    """the output folder of `taojin dedup` or `taojin quality`"""
    work: str | None = None
    """its WORK folder (default: the output's name + .work, where it stands)"""
    sample: Annotated[int, Field(ge=0)] = 200
    """documents, and near-duplicate removals, that are compared with the input (0: none)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


def run_check(config: CheckConfig) -> int:
    """Print the findings; returns 0, or 1 when an invariant is broken. Raises InputError for no output of ours."""
    output = Folder(config.output)
    report = check_output(output, config.work, config.sample)
    print_report(report, output.uri, as_json=config.as_json)
    return 1 if report.broken else 0


def check_output(output: Folder, work_name: str | None, sample: int) -> Report:
    """All proofs, those of OUT alone first."""
    if not output.exists(MANIFEST) and not output.exists(MARKER):
        hint = "; this is a WORK folder, name its output" if output.exists("plan.json") else ""
        raise InputError(
            f"{output.uri}: expected an output of taojin dedup or quality ({MANIFEST} in it), found none{hint}"
        )
    report = Report()
    manifest = report.prove("manifest", MANIFEST, lambda: read_manifest(output))
    if manifest is None:
        return report
    report.prove("files", output.uri, lambda: prove_files(output, manifest))
    rows = report.prove("columns", output.uri, lambda: prove_columns(output, manifest))
    report.prove("conservation", MANIFEST, lambda: prove_conservation(manifest, rows))
    work = Folder(work_name or with_suffix(output.uri, ".work"))
    if not work.exists("plan.json"):
        if work_name:
            raise InputError(f"--work {work.uri}: expected a WORK folder (plan.json in it), found none")
        report.leave_out("work", f"{work.uri} is not there; decisions, ledger and input were not looked at (--work)")
        return report
    check_work(report, output, manifest, work, sample)
    return report


def check_work(report: Report, output: Folder, manifest: dict[str, Any], work: Folder, sample: int) -> None:
    """The proofs that need WORK, and those that need the input."""
    corpus = report.prove("work", work.child("plan.json").uri, lambda: prove_work(output, manifest, work))
    if corpus is None:
        return
    decide = work.child(manifest["decide"])
    report.prove("checksums", work.uri, lambda: prove_checksums(work, decide))
    ledger = report.prove("ledger", decide.uri, lambda: prove_ledger(corpus, decide, manifest))
    if ledger is not None:
        report.prove("clusters", decide.uri, lambda: prove_clusters(corpus, decide, manifest, ledger))
        for place, name in enumerate(manifest["config"].get("against", ()), 1):
            check_index(report, corpus, name, place, ledger)
    if manifest["config"].get("presets") is not None:
        report.prove("rules", decide.uri, lambda: prove_rules(corpus, decide, manifest))
    report.prove("output", output.uri, lambda: prove_output_rows(corpus, decide, output, manifest))
    if sample:
        check_input(report, corpus, output, manifest, ledger, sample)
