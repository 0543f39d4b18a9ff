"""`taojin train`: a run from its YAML file, its plan, its export, or the command of Megatron-LM.

The command's own flags are few; what a run is stands in the YAML (`taojin.train.config`). Nothing here needs PyTorch
until a run begins.
"""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator
from tyro.conf import arg

from taojin.core.config import Config
from taojin.core.errors import ConfigError, InputError
from taojin.report import print_json

if TYPE_CHECKING:
    from taojin.train.config import TrainConfig

ENDPOINT = "HEAD:29500"
# What has a meaning with --evaluate alone.
EVALUATION = ("data", "choices", "examples", "shots", "by", "sequence_length")


class TrainCommand(Config):
    """Train a causal language model on token pairs; the same command again resumes it."""

    config: str | None = None
    """the run, as a YAML file"""
    resume: str | None = None
    """go on with the run in this folder, by the config that it keeps"""
    set: tuple[str, ...] = ()
    """settings over it, such as parallel.tensor=2 tokens=20B"""
    plan: bool = False
    """only say what it would take: memory by part, time, money"""
    engine: str | None = None
    """deepspeed, or megatron: write the command that starts Megatron-LM on every node"""
    tensor: int | None = None
    """short for --set parallel.tensor=N"""
    pipeline: int | None = None
    """short for --set parallel.pipeline=N; only with engine megatron"""
    export: str | None = None
    """write the newest checkpoint of this RUN, or RUN/checkpoints/step-…, as a Hugging Face folder"""
    output: str | None = None
    """with --export: the folder to write; else in place of the YAML's output"""
    evaluate: str | None = None
    """what this Hugging Face folder makes of the pairs in --data and the questions in --choices"""
    data: tuple[str, ...] = ()
    """with --evaluate: prefixes of pairs, for perplexity"""
    choices: tuple[str, ...] = ()
    """with --evaluate: files or folders of multiple-choice questions, in the shape of C-Eval's or CMMLU's"""
    examples: tuple[str, ...] = ()
    """with --choices: the same of examples to show before a question"""
    shots: int | None = None
    """with --examples: how many of its subject (default: 5)"""
    by: Literal["letter", "content"] = "letter"
    """with --choices: whether the model is asked for the letter of an option or for its text"""
    sequence_length: int | None = None
    """with --evaluate: tokens read at once (default: the model's context, at most 4,096)"""
    endpoint: str = ENDPOINT
    """with engine megatron: host:port where the nodes meet"""
    megatron: str | None = None
    """with engine megatron: a checkout of Megatron-LM, at the same path on every node; starts it on the Ray cluster"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout instead of text"""

    @model_validator(mode="after")
    def _check(self) -> "TrainCommand":
        given = [name for name in ("config", "resume", "export", "evaluate") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(f"--{name}" for name in given) or "none"
            raise ValueError(
                f"expected one of --config train.yaml, --resume RUN, --export RUN, --evaluate MODEL, found {found}"
            )
        fields = type(self).model_fields
        stray = [name for name in EVALUATION if getattr(self, name) != fields[name].default]
        if stray and self.evaluate is None:
            raise ValueError(f"--{stray[0].replace('_', '-')} needs --evaluate MODEL")
        if self.resume is not None and self.output is not None:
            raise ValueError("--output has no meaning with --resume, which goes on where the run lies")
        if self.export is not None and self.output is None:
            raise ValueError("--export needs --output, the folder to write")
        return self

    @property
    def settings(self) -> list[str]:
        short = {"engine": self.engine, "parallel.tensor": self.tensor, "parallel.pipeline": self.pipeline}
        if self.export is None:
            short["output"] = self.output
        return [*(f"{key}={value}" for key, value in short.items() if value is not None), *self.set]


def run_train(command: TrainCommand) -> int:
    """Run what was asked for and print it; returns 0. Raises TaojinError subclasses."""
    if command.export is not None:
        return _export(command)
    if command.evaluate is not None:
        return _evaluate(command)
    config = _config(command)
    if command.megatron is not None and config.engine != "megatron":
        raise ConfigError("--megatron: needs --engine megatron")
    if command.plan:
        return _plan(config, as_json=command.as_json)
    if config.engine == "megatron":
        return _megatron(config, command)
    from taojin.train.launch import launch

    # Ray tells of lost workers by print: that is no result. Nor is what DeepSpeed and transformers say, below.
    with redirect_stdout(sys.stderr):
        outcome = launch(config)
    _show(outcome, config, as_json=command.as_json)
    if not command.as_json:
        print(f"next    taojin train --export {config.output} --output MODEL")
    return 0


def _show(outcome: dict[str, Any], config: "TrainConfig", *, as_json: bool) -> None:
    from taojin.train.console import ending

    if as_json:
        print_json(outcome)
        return
    print(ending(outcome, config.currency, config.budget))
    print(f"output  {config.output}")


def _config(command: TrainCommand) -> "TrainConfig":
    if command.resume is not None:
        from taojin.train.run_folder import kept_config

        return kept_config(command.resume, command.settings)
    from taojin.train.config import load_config

    assert command.config is not None
    return load_config(command.config, command.settings)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plan(config: Any, *, as_json: bool) -> int:
    from taojin.train.model import read_model
    from taojin.train.plan import plan, plan_lines
    from taojin.train.zero import as_text

    values = plan(config, read_model(config.model))
    if as_json:
        print_json(values)
        return 0
    print(*plan_lines(values), sep="\n")
    if "deepspeed" in values:
        print("", "DeepSpeed, kept as deepspeed.json in the output:", as_text(values["deepspeed"]), sep="\n", end="")
    return 0


def _megatron(config: Any, command: TrainCommand) -> int:
    if command.megatron is not None:
        from taojin.train.megatron_workers import run_megatron

        with redirect_stdout(sys.stderr):
            outcome = run_megatron(config, command.megatron, _tell)
        _show(outcome, config, as_json=command.as_json)
        return 0
    from taojin.train.megatron_command import megatron_launch
    from taojin.train.model import read_model

    launch = megatron_launch(config, read_model(config.model))
    if command.as_json:
        arguments = launch.torchrun(command.endpoint, "MEGATRON")
        print_json({"environment": dict(launch.environment), "command": arguments, "nodes": launch.nodes})
        return 0
    print(launch.text(command.endpoint, "MEGATRON"))
    return 0


def _export(command: TrainCommand) -> int:
    from taojin.train.export import export

    assert command.export is not None
    assert command.output is not None
    run, step = split_checkpoint(command.export)
    with redirect_stdout(sys.stderr):
        done = export(run, command.output, step)
    if command.as_json:
        print_json({"step": done.step, "output": command.output})
        return 0
    print(f"step {done.step:,} of {run}, as a Hugging Face folder: {command.output}")
    return 0


def _evaluate(command: TrainCommand) -> int:
    from taojin.train.evaluating import evaluate, evaluation_lines

    assert command.evaluate is not None
    with redirect_stdout(sys.stderr):
        found = evaluate(
            command.evaluate,
            data=command.data,
            choices=command.choices,
            examples=command.examples,
            shots=command.shots,
            by=command.by,
            sequence_length=command.sequence_length,
        )
    if command.as_json:
        print_json(found)
        return 0
    print(*evaluation_lines(found), sep="\n")
    return 0


def split_checkpoint(name: str) -> tuple[str, int | None]:
    """(RUN, step or None) of RUN or RUN/checkpoints/step-N. Raises InputError for another name below checkpoints."""
    run, below, last = name.rstrip("/").partition("/checkpoints/")
    if not below:
        return run, None
    number = last.removeprefix("step-")
    if not number.isdigit():
        raise InputError(f"--export {name}: expected RUN, or RUN/checkpoints/step-NUMBER")
    return run, int(number)
