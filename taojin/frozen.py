"""A run's claims: the plan that WORK is frozen to, and the folder that OUT is.

Whatever a run would refuse is refused here, before anything is read but metadata.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from taojin.core.config import fingerprint
from taojin.core.corpus import Plan, make_plan
from taojin.core.errors import FrozenPlanError, InputError, OutputError
from taojin.core.job import JobConfig, ShardJob
from taojin.core.storage import Folder
from taojin.core.uris import is_uri, split_query
from taojin.dedup.config import DedupConfig
from taojin.jobs import DedupJob, extras_of

MARKER = "_taojin.json"
# What the plan knows of files by their content.
CONTENTS = {
    "models": "the content of --models",
    "sensitive": "the content of --sensitive",
    "questions": "the content of --decontaminate",
    "tokenizer": "the content of --tokenizer",
    "chat_template": "the content of --chat-template",
}


def open_plan(config: JobConfig, work: Folder) -> Plan:
    """The plan of WORK: made now, or the frozen one if inputs and scan config are still the same."""
    return freeze(fresh_plan(config), work)


def freeze(fresh: Plan, work: Folder) -> Plan:
    """The plan of WORK: this one, or the frozen one if that is the same.

    Raises FrozenPlanError with the differences otherwise; nothing is deleted.
    """
    value = fresh.as_json()
    if work.exists("plan.json"):
        frozen = work.read_json("plan.json")
        differences = plan_differences(frozen, value)
        if differences:
            raise FrozenPlanError(
                f"{work.uri} belongs to another run: {'; '.join(differences)}. Name another --work, or go back to the "
                "inputs and settings it was made with"
            )
        return Plan.from_json(frozen)
    if work.names():
        raise OutputError(f"{work.uri}: expected an empty or new work folder, found other files; name another --work")
    work.write_json("plan.json", value)
    return fresh


def fresh_plan(config: JobConfig) -> Plan:
    """The plan of a run, made from the inputs as they are. Raises InputError for what a run would refuse."""
    plan = make_plan(
        config.input,
        text_column=config.text_column,
        id_column=config.id_column,
        source_column=config.source_column,
        quality_column=config.reading.quality,
        unit_bytes=int(config.unit_mb * 1e6),
        entries_per_document=config.bands + 1 if isinstance(config, DedupConfig) else 0,
        config=config.scan_part(),
        skip_bad=config.skip_bad_units,
    )
    check_columns(config, plan)
    return plan


def check_columns(config: JobConfig, plan: Plan) -> None:
    """Raise InputError for a column that was asked for by name and is not there."""
    columns = check_named_columns(config, plan)
    extras = extras_of(config, Folder(config.work_folder), Folder(config.work_folder))
    taken = [field.name for extra in extras for field in extra.written() if field.name in plan.schema.names]
    if taken:
        raise InputError(f"the input has a column {taken[0]!r}, the name of one that is to be written; rename it there")
    if not isinstance(config, DedupConfig):
        return
    if config.source_priority and config.source_column not in plan.schema.names:
        raise InputError(
            f"--source-priority needs a source column; there is no {config.source_column!r} among: {columns}"
        )
    if config.quality_column:
        if config.quality_column not in plan.schema.names:
            raise InputError(f"no column {config.quality_column!r} for --quality-column; there are: {columns}")
        kind = plan.schema.field(config.quality_column).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InputError(f"--quality-column {config.quality_column}: expected numbers, found {kind}")


def check_named_columns(config: ShardJob, plan: Plan) -> str:
    """The plan's columns in words. Raises InputError for an id or source column that was named and is not there."""
    columns = ", ".join(f"{field.name} ({field.type})" for field in plan.schema)
    for flag, name in (("id-column", config.id_column), ("source-column", config.source_column)):
        default = ShardJob.model_fields[flag.replace("-", "_")].default
        if name != default and name not in plan.schema.names:
            raise InputError(f"no column {name!r} for --{flag}; there are: {columns}")
    return columns


def plan_differences(frozen: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Human-readable differences between a frozen plan and what it would be now."""
    differences = []
    if frozen["format"] != fresh["format"]:
        differences.append(f"its plan has format {frozen['format']}, this version writes {fresh['format']}")
    kinds = [_command(plan["config"]) for plan in (frozen, fresh)]
    if kinds[0] != kinds[1]:
        return [f"it was made by `taojin {kinds[0]}`"]
    was, now = _settings(frozen["config"]), _settings(fresh["config"])
    for key in sorted(was.keys() | now.keys()):
        old, new = was.get(key), now.get(key)
        if _plain(old) != _plain(new):
            if old and new and key in CONTENTS.values():
                differences.append(f"{key} has changed")
                continue
            differences.append(f"{key} was {old!r} and is {new!r}")
    old_shards = {shard["path"]: shard["fingerprint"] for shard in frozen["shards"]}
    new_shards = {shard["path"]: shard["fingerprint"] for shard in fresh["shards"]}
    for word, paths in (
        ("new", sorted(new_shards.keys() - old_shards.keys())),
        ("missing", sorted(old_shards.keys() - new_shards.keys())),
        ("changed", sorted(p for p in old_shards.keys() & new_shards.keys() if old_shards[p] != new_shards[p])),
    ):
        if paths:
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            differences.append(f"{word}: {', '.join(paths[:3])}{more}")
    return differences


def _command(config: dict[str, Any]) -> str:
    return "tokenize" if "pieces" in config["formats"] else "dedup" if "sketch" in config else "quality"


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a scan by name, formats one by one. What an older plan does not name had its default."""
    defaults = {name: DedupJob.model_fields[name].default for name in ("repair", "signals")}
    formats = {CONTENTS.get(name, f"format of {name}"): value for name, value in config["formats"].items()}
    if _command(config) == "tokenize":
        defaults = {}
    return {**defaults, **{key: value for key, value in config.items() if key != "formats"}, **formats}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def claim_output(config: JobConfig, work: Folder, output: Folder) -> None:
    """Mark OUT as this run's; raises OutputError for a folder that holds anything else."""
    marker = {"plan": fingerprint(work.read_json("plan.json")), "write": fingerprint(config.write_part())}
    if output.exists(MARKER):
        if output.read_json(MARKER) != marker:
            raise OutputError(
                f"{output.uri}: holds the output of another run or other settings; name another --output, or empty it"
            )
        return
    if output.names():
        raise OutputError(f"{output.uri}: expected an empty or new folder, found other files; name another --output")
    output.write_json(MARKER, marker)


def refuse_overlap(config: ShardJob) -> None:
    """OUT and WORK may be neither an input nor lie inside one: the next run would read them."""
    for flag, folder in (("--output", config.output), ("--work", config.work_folder)):
        here = _place(folder) if folder else ""
        inside = [name for name in config.input if here and f"{here}/".startswith(f"{_place(_searched(name))}/")]
        if inside:
            raise OutputError(f"{flag} {folder}: lies inside the input {inside[0]}; name a folder outside it")


def _searched(name: str) -> str:
    """The folder that a recursive pattern searches; any other input as it is."""
    return name.partition("**")[0].rpartition("/")[0] or "." if "**" in name and not is_uri(name) else name


def _place(name: str) -> str:
    path = split_query(name)[0].removeprefix("file://")
    return path if is_uri(path) else str(Path(path).resolve())
