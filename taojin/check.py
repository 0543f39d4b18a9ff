"""Re-open an output and prove what a run promises: `taojin check OUT`, `taojin check PREFIX`.

In: OUT, or the PREFIX of Megatron pairs; WORK (default: the output's name + .work) where it stands; the input where it
stands. Out: one line per invariant on stdout.
Cost: every byte of OUT and WORK is read once for its checksum, `cluster`, `cluster_size`, `component`, decisions and
ledger once more; of the input only what the sample touches. Memory: 1 byte a document and 16 a removal, streamed by
unit otherwise. Of pairs: see `taojin.proofs_of_tokens` and the files that it names.

A broken invariant names its file; the others are still looked at. Nothing is changed. The proofs themselves:
`taojin.proofs_of_output`, `taojin.proofs_of_work`, `taojin.proofs_of_input`.
"""

from typing import Annotated, Any

from pydantic import Field
from tyro.conf import Positional, arg

from taojin.core.config import Config
from taojin.core.errors import InputError
from taojin.core.storage import Folder
from taojin.core.uris import split_query, with_suffix
from taojin.frozen import MARKER
from taojin.pipeline import MANIFEST
from taojin.proofs import Report, print_report
from taojin.proofs_of_blend import prove_blend
from taojin.proofs_of_input import check_input
from taojin.proofs_of_output import prove_columns, prove_conservation, prove_files, read_manifest
from taojin.proofs_of_pair import PAIR_SUFFIXES, Prefix, check_pair
from taojin.proofs_of_provenance import prove_numbers, prove_provenance, prove_splits
from taojin.proofs_of_rules import prove_rules
from taojin.proofs_of_texts import check_texts, check_tokenizer
from taojin.proofs_of_tokens import Tokens, prove_counts, prove_format, prove_ids, prove_mask
from taojin.proofs_of_tokens import prove_files as prove_pair_files
from taojin.proofs_of_tokens import read_manifest as read_tokens
from taojin.proofs_of_work import (
    check_index,
    prove_checksums,
    prove_clusters,
    prove_ledger,
    prove_output_rows,
    prove_work,
)
from taojin.tokenizing import MANIFEST as MANIFEST_SUFFIX


class CheckConfig(Config):
    """Prove an output: files, counts, clusters, ledger, a sample against the input. Exit status 1 if one is broken."""

    output: Positional[str]
    """the output folder of `taojin dedup` or `taojin quality`; the PREFIX of `taojin tokenize` or any Megatron pair"""
    work: str | None = None
    """its WORK folder (default: the output's name + .work, where it stands)"""
    tokenizer: str | None = None
    """of a PREFIX: what it was encoded with, where the manifest does not tell or the file is no longer there"""
    sample: Annotated[int, Field(ge=0)] = 200
    """documents, and near-duplicate removals, that are compared with the input (0: none)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


def run_check(config: CheckConfig) -> int:
    """Print the findings; returns 0, or 1 when an invariant is broken. Raises InputError for no output of ours."""
    output = Folder(config.output)
    if prefix := find_prefix(output):
        report = check_prefix(prefix, config.work, config.tokenizer, config.sample)
    elif config.tokenizer:
        raise InputError(f"{output.uri}: expected the PREFIX of a pair, as --tokenizer goes with, found none")
    else:
        report = check_output(output, config.work, config.sample)
    print_report(report, output.uri, as_json=config.as_json)
    return 1 if report.broken else 0


def find_prefix(output: Folder) -> Prefix | None:
    """The PREFIX of pairs that this names, with or without a suffix; None for anything else."""
    path, query = split_query(output.uri)
    suffix = next((suffix for suffix in (MANIFEST_SUFFIX, *PAIR_SUFFIXES) if path.endswith(suffix)), "")
    prefix = Prefix(path.removesuffix(suffix) + query)
    if any(prefix.has(suffix) for suffix in (MANIFEST_SUFFIX, *PAIR_SUFFIXES)):
        return prefix
    return prefix if _tokenizes(Folder(prefix.file(".work"))) else None


def _tokenizes(work: Folder) -> bool:
    """Whether this is a WORK folder of `taojin tokenize`."""
    return work.exists("plan.json") and "tokenizer_pattern" in work.read_json("plan.json")["config"]


def check_prefix(prefix: Prefix, work: str | None, tokenizer: str | None, sample: int) -> Report:
    """All proofs of an output of `taojin tokenize`, those of its own files first; or those of a pair alone."""
    report = Report()
    if not prefix.has(MANIFEST_SUFFIX) and not _tokenizes(Folder(work or prefix.file(".work"))):
        if work:
            raise InputError(f"--work {work}: expected the WORK folder of a tokenization, found none")
        check_pair(report, prefix, tokenizer)
        return report
    output = report.prove("manifest", prefix.file(MANIFEST_SUFFIX), lambda: read_tokens(prefix))
    if output is None:
        return report
    report.prove("files", prefix.uri, lambda: prove_pair_files(output))
    if output.merged:
        check_merged(report, output, tokenizer)
        return report
    file = check_tokenizer(report, output, tokenizer)
    report.prove("format", prefix.uri, lambda: prove_format(output))
    report.prove("tokens", prefix.uri, lambda: prove_ids(output))
    totals = report.prove("provenance", prefix.uri, lambda: prove_provenance(output))
    report.prove("counts", output.manifest_name, lambda: prove_counts(output, totals))
    if output.manifest["config"]["split"]:
        report.prove("splits", prefix.uri, lambda: prove_splits(output))
    if output.manifest["config"]["chat"]:
        report.prove("mask", prefix.uri, lambda: prove_mask(output))
    report.prove("blend", prefix.uri, lambda: prove_blend(output))
    check_texts(report, output, work, file, sample)
    return report


def check_merged(report: Report, output: Tokens, tokenizer: str | None) -> None:
    """The proofs of an output of `taojin merge`. What its texts were is told by the outputs that it was made from."""
    if "tokenizer" in output.manifest:
        check_tokenizer(report, output, tokenizer)
        report.prove("format", output.prefix.uri, lambda: prove_format(output))
        report.prove("tokens", output.prefix.uri, lambda: prove_ids(output))
    else:
        check_pair(report, output.prefix, tokenizer)
    if output.prefix.has(".parquet"):
        report.prove("provenance", output.prefix.uri, lambda: prove_numbers(output))
    else:
        report.leave_out("provenance", "not every pair that was merged had one")
    report.prove("counts", output.manifest_name, lambda: prove_counts(output, None))
    report.leave_out("texts", f"check those that it was made from: {', '.join(output.manifest['merged'][:3])}")


def check_output(output: Folder, work_name: str | None, sample: int) -> Report:
    """All proofs, those of OUT alone first."""
    if not output.exists(MANIFEST) and not output.exists(MARKER):
        hint = "; this is a WORK folder, name its output" if output.exists("plan.json") else ""
        raise InputError(
            f"{output.uri}: expected an output of taojin dedup or quality ({MANIFEST} in it), or a PREFIX of pairs "
            f"(PREFIX.idx), found none{hint}"
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
