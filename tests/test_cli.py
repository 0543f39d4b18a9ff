"""The command line (taojin/cli.py): flags equal YAML, statuses mean what they say, all is documented."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from taojin import cli, pipeline
from taojin.cli import USAGE, parse
from taojin.core import tasks
from taojin.dedup.config import DedupConfig
from taojin.jobs import DedupJob
from taojin.quality.rules import built_in_presets
from taojin.quality.signals import HEURISTIC_SIGNALS, Signal
from taojin.tokenize.config import MergeConfig, TokenizeConfig
from tests.jobs import ENVIRONMENT, ROOT, make_corpus, taojin, write_texts

COMMANDS = re.findall(r"^  (\w+)  ", USAGE, re.MULTILINE)
FLAGS = ["--" + name.replace("_", "-") for name in DedupJob.model_fields]
# Flags that other commands have beside those.
FURTHER = {
    "quality": ["--preset", "--mode", "--signal-columns"],
    "calibrate": ["--template", "--quantile", "--keep", "--per-language"],
    "tokenize": ["--" + name.replace("_", "-") for name in TokenizeConfig.model_fields],
    "merge": ["--" + name.replace("_", "-") for name in MergeConfig.model_fields],
    "fit": ["--good", "--bad", "--bits", "--max-symbols", "--max-documents", "--held-out", "--seed"],
}
# One value for each field, none of them the default.
SETTINGS: dict[str, Any] = {
    "input": ["a b.parquet", "s3://bucket/数据"],
    "output": "out put",
    "work": "work",
    "text_column": "content",
    "id_column": "key",
    "source_column": "origin",
    "quality_column": "score",
    "max_document_mb": 0.5,
    "unit_mb": 64,
    "skip_bad_units": True,
    "repair": True,
    "sketch": "datasketch",
    "num_hashes": 64,
    "ngram": 4,
    "min_symbols": 9,
    "bands": 9,
    "bins": 512,
    "rows": 7,
    "threshold": 0.75,
    "verify": "exact",
    "source_priority": ["wiki", "web"],
    "against": ["w1", "w2"],
    "keep_none": True,
    "report_only": True,
    "part_mb": 100,
    "row_group_mb": 8,
    "address": "auto",
    "num_cpus": 3,
    "quiet": True,
}


def config_file(folder: Path, values: Any) -> Path:
    (folder / "c.yaml").write_text(yaml.safe_dump(values, allow_unicode=True))
    return folder / "c.yaml"


def settings() -> dict[str, Any]:
    """A value for each field there is; fields this test does not know keep their defaults."""
    return {name: value for name, value in SETTINGS.items() if name in DedupConfig.model_fields}


def as_flags(values: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        items = value if isinstance(value, list) else [] if value is True else [value]
        flags += [flag, *map(str, items)]
    return flags


# ------------------------------------------------------------------------------------------------- flags and YAML


def test_every_setting_is_tried_here() -> None:
    assert not DedupConfig.model_fields.keys() - SETTINGS.keys()
    defaults = {name: field.default for name, field in DedupConfig.model_fields.items()}
    assert not [name for name, value in settings().items() if defaults[name] == value]


def test_flags_make_the_config() -> None:
    assert parse(DedupConfig, "dedup", as_flags(settings())) == DedupConfig(**settings())


@pytest.mark.parametrize("separator", ["_", "-"])
def test_yaml_equals_flags(tmp_path: Path, separator: str) -> None:
    values = {name.replace("_", separator): value for name, value in settings().items()}
    path = config_file(tmp_path, values)
    assert parse(DedupConfig, "dedup", ["--config", str(path)]) == DedupConfig(**settings())
    assert parse(DedupConfig, "dedup", [f"--config={path}"]) == DedupConfig(**settings())


@pytest.mark.parametrize("flag", [["--num-hashes", "64"], ["--num-hashes=64"], ["--num_hashes", "64"]])
@pytest.mark.parametrize("first", [True, False])
def test_typed_flags_win_over_yaml(tmp_path: Path, flag: list[str], first: bool) -> None:
    path = config_file(tmp_path, {"input": ["a"], "output": "o", "num_hashes": 256, "bands": 9})
    config = ["--config", str(path)]
    assert parse(DedupConfig, "dedup", flag + config if first else config + flag).num_hashes == 64


def test_typed_lists_replace_those_of_yaml(tmp_path: Path) -> None:
    path = config_file(tmp_path, {"input": ["a", "b"], "output": "o"})
    assert parse(DedupConfig, "dedup", ["--config", str(path), "--input", "c"]).input == ("c",)


def test_typed_switches_win_over_yaml_both_ways(tmp_path: Path) -> None:
    path = config_file(tmp_path, {"input": ["a"], "output": "o", "keep_none": True, "quiet": False})
    config = parse(DedupConfig, "dedup", ["--config", str(path), "--no-keep-none", "--quiet"])
    assert (config.keep_none, config.quiet) == (False, True)


def test_empty_values_in_yaml_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("input: [a]\noutput: o\nwork:\nsource_priority: []\n")
    config = parse(DedupConfig, "dedup", ["--config", str(tmp_path / "c.yaml")])
    assert config == DedupConfig(input=("a",), output="o")


@pytest.mark.parametrize("text", ["threshhold: 0.9", "in put: [a]", "- a list", "just words", "a: [", "\x00"])
def test_a_wrong_config_file_ends_with_status_2(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    outcome = taojin("dedup", "--config", tmp_path / "c.yaml", "--input", "a", "--output", tmp_path / "o")
    assert outcome.status == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    path = config_file(tmp_path, {"threshhold": 0.9})
    outcome = taojin("dedup", "--config", path, "--input", "a", "--output", tmp_path / "o")
    assert outcome.status == 2
    assert "threshhold" in outcome.err


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    taojin("dedup", "--config", tmp_path / "c.yaml").refuses(2, f"--config {tmp_path}/c.yaml: No such file")


def test_an_unknown_flag_ends_with_status_2() -> None:
    outcome = taojin("dedup", "--input", "a", "--output", "o", "--colour", "red")
    assert (outcome.status, outcome.out) == (2, "")
    assert "--colour" in outcome.err


def test_a_value_of_the_wrong_kind_ends_with_status_2() -> None:
    outcome = taojin("dedup", "--input", "a", "--output", "o", "--bands", "many")
    assert (outcome.status, outcome.out) == (2, "")
    assert "--bands" in outcome.err


# ------------------------------------------------------------------------------------------------- commands


def test_no_command_shows_the_usage_with_status_2() -> None:
    outcome = taojin()
    assert outcome.status == 2
    assert USAGE in outcome.out + outcome.err


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(flag: str) -> None:
    outcome = taojin(flag)
    assert outcome.status == 0
    assert {"dedup", "quality", "calibrate", "fit", "plan", "explain", "check"} <= set(COMMANDS)
    assert outcome.out.strip() == USAGE


def test_an_unknown_command_names_those_there_are() -> None:
    taojin("dedupe").refuses(2, "no command 'dedupe'", *COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    outcome = taojin(command, "--help")
    assert outcome.status == 0
    assert f"taojin {command}" in outcome.out


def test_the_help_of_dedup_explains_every_flag() -> None:
    text = taojin("dedup", "--help").out
    assert not [flag for flag in [*FLAGS, "--json"] if flag not in text]
    assert not [name for name, field in DedupJob.model_fields.items() if not field.description]


@pytest.mark.parametrize("command", FURTHER)
def test_the_help_of_other_commands_explains_their_flags(command: str) -> None:
    text = taojin(command, "--help").out
    assert not [flag for flag in FURTHER[command] if flag not in text]


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"taojin \d+\.\d+\.\d+\n", taojin("--version").out)


# ------------------------------------------------------------------------------------------------- results and progress


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("cli") / "in")


def run(corpus: Path, output: Path, *flags: str) -> Any:
    return taojin("dedup", "--input", corpus, "--output", output, "--num-cpus", "0", *flags)


def test_json_is_one_object_on_stdout(corpus: Path, tmp_path: Path) -> None:
    outcome = run(corpus, tmp_path / "out", "--json")
    counts = json.loads(outcome.out)
    assert outcome.out.count("\n") == 1
    assert counts["documents"] == counts["kept"] + sum(counts["removed"].values()) == 900
    assert counts["output"] == str(tmp_path / "out")


def test_a_person_reads_a_table_on_stdout(corpus: Path, tmp_path: Path) -> None:
    lines = run(corpus, tmp_path / "out").out.splitlines()
    assert lines[0].split()[:3] == ["documents", "in", "900"]
    assert any(line.startswith("near_duplicate") for line in lines)
    assert any(line.startswith("documents kept") for line in lines)
    assert any(line.endswith(str(tmp_path / "out")) for line in lines)


def test_progress_goes_to_stderr_stage_by_stage(corpus: Path, tmp_path: Path) -> None:
    stages = [line.split()[0] for line in run(corpus, tmp_path / "out", "--json").err.splitlines()]
    assert stages[0] == "scan"
    assert {"twins", "pairs", "decisions", "write"} <= set(stages)


def test_quiet_leaves_stderr_empty(corpus: Path, tmp_path: Path) -> None:
    assert run(corpus, tmp_path / "out", "--quiet").err == ""


def test_a_rerun_says_that_all_was_done(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", "--json")
    again = run(corpus, tmp_path / "out", "--json")
    assert all("done by an earlier run" in line or "warning" in line for line in again.err.splitlines())


def test_an_interrupt_is_one_line_and_status_1(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run_dedup", interrupted)
    run(corpus, tmp_path / "out").refuses(1, "interrupted; run again to resume")


def test_a_traceback_is_there_for_those_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAOJIN_TRACEBACK", "1")
    with pytest.raises(Exception, match="no such file or folder"):
        run(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "taojin.cli"], [str(Path(sys.executable).parent / "taojin")]]
)
def test_it_runs_as_a_script_and_as_a_module(command: list[str], tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", ["文本"])
    done = subprocess.run(
        [*command, "dedup", "--input", path, "--output", tmp_path / "out", "--json"],
        capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept"] == 1


def test_a_single_unit_starts_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(tasks, "RayExecutor", None)
    path = write_texts(tmp_path / "a.parquet", ["文本"])
    assert taojin("dedup", "--input", path, "--output", tmp_path / "out", "--quiet").status == 0


# ------------------------------------------------------------------------------------------------- documentation


def documentation() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("flag", [*FLAGS, "--json", "--config"])
def test_every_flag_of_dedup_is_documented(flag: str) -> None:
    assert re.search(rf"{flag}(?![\w-])", documentation())


@pytest.mark.parametrize("flag", sorted({flag for flags in FURTHER.values() for flag in flags}))
def test_every_flag_of_the_other_commands_is_documented(flag: str) -> None:
    assert re.search(rf"{flag}(?![\w-])", documentation())


@pytest.mark.parametrize("signal", HEURISTIC_SIGNALS, ids=lambda signal: signal.name)
def test_every_signal_is_documented_in_its_own_words(signal: Signal) -> None:
    assert f"| `{signal.name}` | {signal.meaning} |" in documentation()


@pytest.mark.parametrize("preset", built_in_presets())
def test_every_preset_is_documented(preset: str) -> None:
    text = documentation()
    family, _, language = preset.partition("-")
    assert f"`{preset}`" in text or (f"`{family}-" in text and f"`-{language}`" in text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert f"taojin {command}" in documentation()


def test_no_flag_is_documented_that_is_not_there() -> None:
    """Flags of other commands and of other programs' commands lines aside: those written as `taojin dedup … --flag`."""
    lines = documentation().replace("\\\n", " ").splitlines()
    lines = [line for line in lines if re.search(r"^ *taojin dedup", line)]
    used = {flag for line in lines for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}
    ray = {"--working-dir"}
    switches = {f"--no-{flag[2:]}" for flag in FLAGS}
    assert not used - {*FLAGS, *switches, *ray, "--json", "--config", "--help"}


def test_usage_names_every_command_that_runs() -> None:
    source = Path(cli.__file__).read_text()
    assert re.findall(r'^        "(\w+)": _', source, re.MULTILINE) == COMMANDS
