"""The whole job on real text, explained: `python -m taojin.demo [--folder DIR]`.

Gathers a corpus from this Python installation (`taojin.demo_corpus`), removes its duplicates with embedded
Ray, checks the output, and prints what went and why, three removals beside what stayed in their place; then writes
the clean documents as two Megatron pairs, for training and validation, and checks those too; trains a small model on
them, where the extra `train` is installed (`taojin.demo_training`); and says where all of it lies.

Outputs: FOLDER/corpus (the raw Parquet shards), FOLDER/clean (the clean ones), FOLDER/clean.work (plan, sidecars,
ledger), FOLDER/tokens (pairs, provenance, the tokenizer if the demo had to train one), FOLDER/train (the run, the
exported model). The tables go to stdout, progress to stderr. A rerun replaces these folders, and only where the marker
file says that the demo made them. The exit status is 1 where a check fails or the loss does not fall.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from taojin import cli
from taojin.core.errors import InvariantError, OutputError, TaojinError
from taojin.dedup.config import DedupConfig
from taojin.demo_corpus import gather
from taojin.demo_findings import choose_examples, read_findings
from taojin.demo_report import (
    WORK,
    print_corpus,
    print_examples,
    print_places,
    print_removals,
    print_skipped_training,
    print_training,
)
from taojin.demo_tokenizer import find_tokenizer
from taojin.demo_training import STEPS, missing, train_small
from taojin.pairs_report import tokenized_lines
from taojin.pipeline import run_dedup
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenizing import run_tokenize

MARKER = ".taojin-demo.json"
_MADE = ("corpus", "clean", WORK, "tokens", "train")
_UNIT_MB = 4  # small, so that this small corpus is several units

_GATHERING = "Gathering texts from this Python installation: half a minute at most"
_TRAINING = "Training a small model on the pairs, on the CPU: {:,} steps"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m taojin.demo", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where it all goes (demo-output)")
    parser.add_argument("--limit-mb", type=float, help="gather about this much text only (default: about 30 MB)")
    parser.add_argument("--num-cpus", type=int, help="CPUs for the embedded Ray; 0 runs without Ray (default: all)")
    parser.add_argument("--train-steps", type=int, default=STEPS, help=f"of the small model; 0 trains none ({STEPS})")
    arguments = parser.parse_args(argv)
    if arguments.limit_mb is not None and not arguments.limit_mb > 0:
        parser.error(f"--limit-mb: expected a number above 0, found {arguments.limit_mb:g}")
    if arguments.num_cpus is not None and arguments.num_cpus < 0:
        parser.error(f"--num-cpus: expected 0 or more, found {arguments.num_cpus}")
    if arguments.train_steps < 0 or arguments.train_steps == 1:
        parser.error(f"--train-steps: expected 0, or 2 or more so that a loss can fall, found {arguments.train_steps}")
    try:
        return run(
            arguments.folder,
            limit_mb=arguments.limit_mb,
            num_cpus=arguments.num_cpus,
            train_steps=arguments.train_steps,
        )
    except TaojinError as error:
        print(f"taojin demo: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"taojin demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("taojin demo: interrupted; run again to start over", file=sys.stderr)
        return 1


def run(folder: Path, *, limit_mb: float | None, num_cpus: int | None, train_steps: int) -> int:
    """Gather, dedup, check, explain, tokenize, train; returns the highest exit status. Raises TaojinError."""
    corpus, clean, work, tokens, train = (folder / name for name in _MADE)
    config = DedupConfig(input=(str(corpus),), output=str(clean), work=str(work), unit_mb=_UNIT_MB, num_cpus=num_cpus)
    prepare_folder(folder)
    console, progress = Console(highlight=False), Console(stderr=True)
    if not progress.is_terminal:
        progress.print(_GATHERING)
    with progress.status(_GATHERING):
        start = time.monotonic()
        summary = gather(corpus, limit_mb=limit_mb)
        gather_seconds = time.monotonic() - start
    print_corpus(console, summary, gather_seconds)

    start = time.monotonic()
    result = run_dedup(config)
    dedup_seconds = time.monotonic() - start

    ledger = work / config.decide_name / "ledger"
    findings = read_findings(corpus, ledger)
    if findings.total().documents != sum(result.counts["removed"].values()):
        raise InvariantError(
            f"{ledger}: expected {sum(result.counts['removed'].values()):,} documents of the corpus, "
            f"found {findings.total().documents:,}"
        )
    examples = choose_examples(corpus, findings)
    print_removals(console, summary, findings, dedup_seconds)
    print_examples(console, examples)
    console.print("The output, re-opened and checked", style="bold")
    status = cli.main(["check", str(clean)])
    console.print()
    status = max(status, write_pairs(console, clean, tokens, num_cpus=num_cpus))
    if train_steps:
        status = max(status, train_on_pairs(console, train, tokens, train_steps))
    print_places(console, folder, ledger, examples)
    return status


def train_on_pairs(console: Console, train: Path, tokens: Path, steps: int) -> int:
    """Train a small model where that can be done; returns 1 if its loss did not fall. Raises RunError."""
    if without := missing():
        print_skipped_training(console, without)
        return 0
    print(_TRAINING.format(steps), file=sys.stderr, flush=True)
    trained = train_small(train, tokens, steps)
    print_training(console, trained)
    return 0 if trained.fell else 1


def write_pairs(console: Console, clean: Path, tokens: Path, *, num_cpus: int | None) -> int:
    """Tokenize the clean shards and check the pairs; returns the exit status of the check."""
    tokens.mkdir()
    tokenizer, whose = find_tokenizer(clean, tokens)
    config = TokenizeConfig(
        input=(str(clean),),
        output=str(tokens / "demo"),
        tokenizer=str(tokenizer),
        split="train=0.98,valid=0.02",
        unit_mb=_UNIT_MB,
        num_cpus=num_cpus,
    )
    result = run_tokenize(config)
    console.print(f"The clean documents as Megatron pairs, by {whose}", style="bold")
    for line in tokenized_lines(result):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print()
    console.print("The pairs, re-opened and checked", style="bold")
    status = cli.main(["check", config.output])
    console.print()
    return status


def prepare_folder(folder: Path) -> None:
    """Make `folder`, or clear what an earlier demo left in it.

    Raises OutputError when it holds files and no marker, for then it is somebody else's.
    """
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; the demo needs a folder: name another one with --folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not marker.is_file():
            raise OutputError(
                f"{folder} is not empty and the demo did not make it (there is no {MARKER} in it): "
                "name another folder with --folder"
            )
        for name in _MADE:
            made = folder / name
            if made.is_symlink():
                raise OutputError(f"{made} is a link, which the demo never makes: move it away")
            if made.exists():
                shutil.rmtree(made)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"made_by": "taojin.demo", "replaced_by_a_rerun": list(_MADE)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
