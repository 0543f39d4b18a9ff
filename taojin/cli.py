"""The command line: each command is a config whose fields are its flags; no logic lives here.

`--config FILE.yaml` holds the same names; its values become flags in front of those typed, so typed ones win.
Results go to stdout, progress and messages to stderr. Exit status: see `taojin.core.errors`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

USAGE = """taojin 淘金: clean training corpora from raw shards

usage: taojin COMMAND [--help] [--config FILE.yaml] [flags]

  dedup      remove exact and near-duplicates, with evidence for every removal
  quality    judge documents by rules: Gopher, C4, FineWeb-2, … or your own; annotate, filter, or both
  tokenize   write Megatron .bin/.idx pairs, of shards or of what decisions keep: split, shuffled, with provenance
  merge      join pairs into one
  train      train a model on pairs with DeepSpeed ZeRO-3 and Ray; --plan says what it would take
  calibrate  find the thresholds that nearly all of a trusted reference passes, as a preset
  fit        train a small quality classifier on good and bad documents
  plan       what a run would take: documents, units, memory, disk, time, and the LSH curve
  explain    why a document went or stayed: taojin explain WORK DOCUMENT
  check      re-open an output or a pair and prove its invariants: taojin check OUT, taojin check PREFIX

taojin COMMAND --help lists its flags. Exit status: 0 done, 1 a run failed part-way (run again to resume),
2 the input or the configuration is wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "dedup": _dedup,
        "quality": _quality,
        "tokenize": _tokenize,
        "merge": _merge,
        "train": _train,
        "calibrate": _calibrate,
        "fit": _fit,
        "plan": _plan,
        "explain": _explain,
        "check": _check,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from taojin import __version__

        print(f"taojin {__version__}")
        return 0
    if arguments[0] not in commands:
        print(f"taojin: no command {arguments[0]!r}; there are: {', '.join(commands)}", file=sys.stderr)
        return 2
    from taojin.core.errors import TaojinError

    try:
        return commands[arguments[0]](arguments[1:])
    except TaojinError as error:
        if os.environ.get("TAOJIN_TRACEBACK"):
            raise
        print(f"taojin {arguments[0]}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"taojin {arguments[0]}: interrupted; run again to resume", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def parse(config: type[Any], command: str, arguments: list[str]) -> Any:
    """The config from flags and --config; raises ConfigError, or exits with status 2 for unknown flags."""
    import tyro

    return tyro.cli(config, prog=f"taojin {command}", args=with_config_file(arguments))


def with_config_file(arguments: list[str]) -> list[str]:
    """Replace `--config FILE` by the flags it stands for, in front of all others."""
    from taojin.core.config import load_yaml
    from taojin.core.errors import ConfigError

    flags: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, has_value, value = argument.partition("=")
        if name != "--config":
            rest.append(argument)
            continue
        path = value if has_value else next(remaining, None)
        if path is None:
            raise ConfigError("--config: expected a YAML file")
        typed = {a.split("=")[0] for a in arguments if a.startswith("--")}
        for key, setting in load_yaml(path).items():
            flag = "--" + key.replace("_", "-")
            if setting is None or flag in typed or f"--no-{flag[2:]}" in typed:
                continue
            if isinstance(setting, bool):
                flags.append(flag if setting else f"--no-{flag[2:]}")
            elif isinstance(setting, list):
                flags += [flag, *map(str, setting)]
            else:
                flags += [flag, str(setting)]
    return flags + rest


def _dedup(arguments: list[str]) -> int:
    from taojin.jobs import DedupJob

    return run_job("dedup", DedupJob, arguments)


def _quality(arguments: list[str]) -> int:
    from taojin.jobs import QualityJob

    return run_job("quality", QualityJob, arguments)


def with_json(config: Any) -> Any:
    """The config with a flag more, --json."""
    from typing import Annotated

    from tyro.conf import arg

    class Command(config):  # type: ignore[misc] # its base is known at run time
        as_json: Annotated[bool, arg(name="json")] = False
        """one JSON object on stdout instead of a table"""

    Command.__doc__ = config.__doc__
    return Command


def run_job(command: str, job: Any, arguments: list[str]) -> int:
    """Run the pipeline with a config of this class and print what it did; returns 0."""
    config = parse(with_json(job), command, arguments)
    from taojin.pipeline import run_dedup, run_quality
    from taojin.report import print_result

    runs: dict[str, Callable[[Any], Any]] = {"dedup": run_dedup, "quality": run_quality}
    # Ray tells of lost workers by print: that is no result.
    with redirect_stdout(sys.stderr):
        result = runs[command](config)
    print_result(result, as_json=config.as_json)
    return 0


def _tokenize(arguments: list[str]) -> int:
    from taojin.tokenize.config import TokenizeConfig

    return run_tokens("tokenize", TokenizeConfig, arguments)


def _merge(arguments: list[str]) -> int:
    from taojin.tokenize.config import MergeConfig

    return run_tokens("merge", MergeConfig, arguments)


def _train(arguments: list[str]) -> int:
    import tyro

    from taojin.training import TrainCommand, run_train

    # Its YAML holds sections, which no flags stand for: it is not spelled out as those of the other commands.
    return run_train(tyro.cli(TrainCommand, prog="taojin train", args=arguments))


def run_tokens(command: str, config_class: Any, arguments: list[str]) -> int:
    """Write pairs with a config of this class and print what was written; returns 0."""
    config = parse(with_json(config_class), command, arguments)
    from taojin.pairs_report import print_tokenized

    # Ray tells of lost workers by print: that is no result.
    with redirect_stdout(sys.stderr):
        if command == "tokenize":
            from taojin.tokenizing import run_tokenize

            result = run_tokenize(config)
        else:
            from taojin.merging import run_merge

            result = run_merge(config)
    print_tokenized(result, as_json=config.as_json)
    return 0


def _calibrate(arguments: list[str]) -> int:
    from taojin.calibrating import CalibrateConfig, run_calibrate

    return run_calibrate(parse(CalibrateConfig, "calibrate", arguments))


def _fit(arguments: list[str]) -> int:
    from taojin.fitting import FitCommand, run_fit

    return run_fit(parse(FitCommand, "fit", arguments))


def _plan(arguments: list[str]) -> int:
    from taojin.planning import PlanConfig, run_plan

    return run_plan(parse(PlanConfig, "plan", arguments))


def _explain(arguments: list[str]) -> int:
    from taojin.explain import ExplainConfig, run_explain

    return run_explain(parse(ExplainConfig, "explain", arguments))


def _check(arguments: list[str]) -> int:
    from taojin.check import CheckConfig, run_check

    return run_check(parse(CheckConfig, "check", arguments))


if __name__ == "__main__":
    sys.exit(main())
