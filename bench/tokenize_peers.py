"""The peers of `taojin tokenize`: Megatron-LM's tool, or its loop, and datatrove; each in its own environment."""

import json
import shutil
import sys
from pathlib import Path

from bench import corpus, tokenizing
from bench.corpus import CorpusError
from bench.lanes import PEERS, Row, make_row, peers_python, run
from bench.tokenize_bench import LANE, ORACLE, Bench, compare_with_oracle, compare_with_ours


def _python() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def megatron(bench: Bench) -> list[Row]:
    """Its tool from a checkout, or its loop; JSON lines are made before."""
    python = peers_python("megatron-venv", PEERS / "requirements-megatron.txt", _python())
    folder = bench.work / "megatron"
    folder.mkdir()

    def preprocess(name: str, shards: Path) -> tuple[Row, Path]:
        lines, prefix = folder / "input.jsonl", folder / "out"
        tokenizing.write_lines(shards, lines)
        script: list[str | Path] = [
            python,
            PEERS / "megatron_preprocess.py",
            "--input",
            lines,
            "--output-prefix",
            prefix,
        ]
        script += ["--tokenizer-model", bench.tokenizer, "--result", folder / "result"]
        if bench.context.megatron:
            script += ["--megatron", bench.context.megatron.resolve()]
        usage, calibration = run(f"Megatron-LM on {name}", script)
        told = json.loads((folder / "result").read_text())
        label = "Megatron-LM's preprocess_data.py" + ("" if told["is_the_tool"] else ": its loop, re-driven")
        row = make_row(LANE, label, name, corpus.text_bytes(shards)[1] / 1e6, usage, calibration)
        row.extra |= told
        return row, prefix.with_name("out_text_document")

    rows = []
    for name in dict.fromkeys((ORACLE, bench.peers_corpus)):
        try:
            row, pair = preprocess(name, bench.folder(name))
        except CorpusError as error:
            rows.append(Row(lane=LANE, name="Megatron-LM", corpus=name, reason=str(error)))
            continue
        if name == ORACLE:
            compare_with_oracle(bench, row, pair)
        compare_with_ours(bench, row, pair)
        rows.append(row)
    startup = preprocess("two documents", bench.few)[0].cpu_seconds
    for row in rows:
        row.startup_seconds = 0.0 if row.reason else startup
    if rows and not rows[-1].reason:
        rows[-1].extra["note"] = f"Megatron-LM: {rows[-1].extra['config']}."
    shutil.rmtree(folder)
    return rows


def datatrove(bench: Bench) -> list[Row]:
    python = peers_python("peers-venv", PEERS / "requirements.txt", _python())
    folder = bench.work / "datatrove"
    usages = []
    for name, shards in (("two documents", bench.few), (bench.peers_corpus, bench.folder(bench.peers_corpus))):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        script: list[str | Path] = [python, PEERS / "datatrove_tokenize.py", "--input", shards, "--work", folder]
        script += ["--tokenizer", bench.file, "--eod", tokenizing.EOD, "--result", folder / "result"]
        usages.append(run(f"datatrove on {name}", script))
    name = bench.peers_corpus
    row = make_row(LANE, "datatrove MegatronDocumentTokenizer", name, bench.megabytes(name), *usages[1])
    row.startup_seconds = usages[0][0].cpu_seconds
    row.extra |= json.loads((folder / "result").read_text())
    compare_with_ours(bench, row, folder / "00000_tokens")
    shutil.rmtree(folder)
    return [row]
