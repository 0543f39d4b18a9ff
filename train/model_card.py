"""README.md of an exported model: what it is, how and on what it was trained, what came out, how to load it.

In: what a run keeps (run.json, config.json, deepspeed.json, metrics) and what `taojin tokenize` left beside its pairs.
Out: Markdown with the YAML header of the Hugging Face Hub. `model_card` is a pure function of those values; nothing is
made up: what they do not tell is left out, or said to be unknown. Of paths only the last part is shown.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import Folder
from taojin.train.checkpoint import Checkpoint
from taojin.train.config import TrainConfig, read_blend
from taojin.train.shape import FAMILIES, shape_of
from taojin.train.tracking import read_metrics

MANIFEST = ".manifest.json"
LICENSE = "# license: unknown to the run; name the model's here before it is published"
# Sources of a pair that are named, and the least share of the tokens for a language to be in the header.
SHOWN_SOURCES = 10
LANGUAGE_SHARE = 0.01
TOKENIZER_FILES = {"tokenizer.json", "tokenizer.model", "vocab.json"}
UNKNOWN = "unknown"

Rows = Sequence[tuple[str, str]]


def read_facts(folder: Folder, step: int) -> dict[str, Any]:
    """What `model_card` wants of a run up to a step: run, launch, deepspeed, metrics, pairs; empty where there is none.
    Raises InputError without a run.json."""
    run = _json(folder, "run.json")
    if not run:
        raise InputError(f"{folder.uri}/run.json: No such file; expected the folder of a run of `taojin train`")
    launch = _json(folder, "config.json")
    prefixes = _prefixes({**launch, **run["config"]})
    return {
        "run": run,
        "launch": launch,
        "deepspeed": _json(folder, "deepspeed.json"),
        "metrics": {done: numbers for done, numbers in read_metrics(folder).items() if done <= step},
        "pairs": [(prefix, manifest_of(prefix)) for prefix in prefixes],
    }


def manifest_of(prefix: str) -> dict[str, Any]:
    """The manifest that names this pair, of those in its folder; {} where there is none, or the pair is elsewhere."""
    place, _, name = prefix.rpartition("/")
    folder = Folder(place or ".")
    try:
        beside = [found for found in folder.names() if found.endswith(MANIFEST)]
    except (OSError, InputError):
        return {}
    for found in beside:
        # The names of an output's pairs begin with its own.
        if name.startswith(found.removesuffix(MANIFEST)):
            values = _json(folder, found)
            if any(pair.get("name") == name for pair in values.get("pairs", [])):
                return {**values, "name": found.removesuffix(MANIFEST)}
    return {}


def _json(folder: Folder, name: str) -> dict[str, Any]:
    try:
        values = folder.read_json(name)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _prefixes(config: Mapping[str, Any]) -> list[str]:
    if config.get("blend"):
        try:
            return [prefix for prefix, _ in read_blend(config["blend"])[0]]
        except ConfigError:
            return []
    return [source["prefix"] for source in config.get("data") or ()]


def model_card(
    *,
    name: str,
    model: Mapping[str, Any],
    checkpoint: Checkpoint,
    parameters: int,
    files: Sequence[str],
    run: Mapping[str, Any],
    launch: Mapping[str, Any],
    deepspeed: Mapping[str, Any],
    metrics: Mapping[int, Mapping[str, float]],
    pairs: Sequence[tuple[str, Mapping[str, Any]]],
) -> str:
    """The text of README.md.

    name: of the exported folder · model: its config.json · checkpoint: that was exported · parameters: how many are
    stored · files: names beside the card · run: run.json · launch: config.json of the run's last start · deepspeed: its
    deepspeed.json · metrics: step → numbers, none beyond the checkpoint · pairs: (prefix, manifest of its output), in
    the order of run.json's, or nothing where they are unknown. Everything but run, model and checkpoint may be empty.
    """
    config = {**launch, **run["config"]}
    tokens = checkpoint.step * config["global_batch"] * config["sequence_length"]
    # One entry for each output, however many pairs are from it.
    outputs = [*{(found["name"], found.get("claim")): found for _, found in pairs if found}.values()]
    parts = [
        _header(model, config, outputs),
        f"# {_cell(name)}",
        f"A {_kind(config)} of {parameters:,} parameters ({model['model_type']}), trained with "
        f"[DeepSpeed](https://www.deepspeed.ai) by `taojin train`: step {checkpoint.step:,} of {run['steps']:,}, "
        f"{tokens:,} tokens.",
        "## What it is",
        _table(_architecture(model, config, parameters)),
        "## How it was trained",
        _table(_training(checkpoint, config, run["steps"], deepspeed, tokens)),
        "## What it was trained on",
        _data(run["data"], [prefix for prefix, _ in pairs], tokens),
        *(_output(manifest, [prefix for prefix, _ in pairs]) for manifest in outputs),
        "## Results",
        _results(metrics, config),
        *_cost(metrics, config),
        "## How to load it",
        _loading(name, files, outputs),
        "## Limits",
        _limits(config, metrics),
    ]
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------- parts


def _header(model: Mapping[str, Any], config: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> str:
    import yaml

    values: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if languages := _languages(outputs):
        values["language"] = languages
    values["tags"] = [str(model["model_type"]), "fine-tuned" if config.get("loss_mask") else "base-model", "taojin"]
    return "\n".join(["---", LICENSE, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip(), "---"])


def _languages(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Codes of at least LANGUAGE_SHARE of the tokens, the largest first."""
    totals: dict[str, int] = {}
    for manifest in outputs:
        for code, counts in (manifest.get("counts", {}).get("by_language") or {}).items():
            totals[code] = totals.get(code, 0) + counts["tokens"]
    least = LANGUAGE_SHARE * sum(totals.values())
    known = [code for code in totals if code.isascii() and code.isalpha() and len(code) in (2, 3)]
    return sorted((code for code in known if totals[code] >= least), key=lambda code: (-totals[code], code))


def _kind(config: Mapping[str, Any]) -> str:
    return "fine-tuned causal language model" if config.get("loss_mask") else "causal language model"


def _architecture(model: Mapping[str, Any], config: Mapping[str, Any], parameters: int) -> Rows:
    rows = [
        ("Architecture", ", ".join(model.get("architectures") or ()) or str(model["model_type"])),
        ("Parameters", f"{parameters:,}" + (" (embedding and output share one matrix)" if _tied(model) else "")),
    ]
    if model["model_type"] in FAMILIES:
        shape = shape_of(model, "config.json")
        rows += [
            ("Layers", f"{shape.layers:,} of width {shape.hidden:,}, feed-forward {shape.intermediate:,}"),
            (
                "Attention",
                f"{shape.heads:,} heads of {shape.head_dim:,}, {shape.heads_kv:,} for keys and values",
            ),
            ("Vocabulary", f"{shape.vocabulary:,}"),
        ]
    context = f"trained on sequences of {config['sequence_length']:,} tokens"
    if (positions := model.get("max_position_embeddings")) is not None:
        context = f"{positions:,} positions, {context}"
    return [*rows, ("Context", context), ("Weights", f"safetensors, {model.get('dtype', UNKNOWN)}")]


def _tied(model: Mapping[str, Any]) -> bool:
    return bool(model.get("tie_word_embeddings"))


def _training(
    checkpoint: Checkpoint, config: Mapping[str, Any], steps: int, deepspeed: Mapping[str, Any], tokens: int
) -> Rows:
    batch, length = config["global_batch"], config["sequence_length"]
    optimizer = config["optimizer"]
    objective = "next token" + (", on marked targets alone" if config.get("loss_mask") else "")
    if config.get("separate_documents"):
        objective += "; no attention between documents of a sequence"
    rows = [
        ("Start", _start(config)),
        ("Objective", objective),
        ("Steps", f"{checkpoint.step:,} of {steps:,}"),
        ("Tokens", f"{tokens:,}"),
        ("Batch", f"{batch:,} sequences of {length:,} tokens: {batch * length:,} tokens a step"),
        (
            "Optimizer",
            f"AdamW, β₁ {optimizer['beta1']:g}, β₂ {optimizer['beta2']:g}, ε {optimizer['epsilon']:g}, weight decay "
            f"{optimizer['weight_decay']:g} on matrices, "
            + (f"gradients clipped at a norm of {config['clip']:g}" if config["clip"] else "gradients not clipped"),
        ),
        ("Learning rate", _schedule(config["schedule"], optimizer["learning_rate"], steps)),
        ("Precision", f"{config['precision']}, optimizer states in fp32"),
        ("Seed", f"{config['seed']}"),
        ("Parallel", _layout(checkpoint, deepspeed.get("sequence_parallel_size", 1))),
    ]
    if "stage" in (zero := deepspeed.get("zero_optimization", {})):
        rows.append(("ZeRO", f"stage {zero['stage']}{_offload(zero)}"))
    if config.get("device_name"):
        rows.append(("Devices", str(config["device_name"])))
    return rows


def _start(config: Mapping[str, Any]) -> str:
    if _fresh(config) is None:
        return UNKNOWN
    return "fresh weights" if _fresh(config) else f"the weights of {_base(_source(config))}"


def _schedule(schedule: Mapping[str, Any], peak: float, total: int) -> str:
    def span(value: float) -> str:
        return f"{value:,} steps" if isinstance(value, int) else f"{round(value * total):,} steps"

    warm = f"linear warm-up of {span(schedule['warmup'])} to {peak:g}"
    floor = f"{peak * schedule['minimum']:g}"
    if schedule["kind"] == "cosine":
        return f"{warm}, cosine to {floor} at step {total:,}"
    if schedule["kind"] == "wsd":
        shape = {"sqrt": "1 - √t"}.get(schedule["decay_shape"], schedule["decay_shape"])
        return f"{warm}, constant, then {shape} to {floor} in the last {span(schedule['decay'])} of {total:,}"
    return f"{warm}, then constant"


def _layout(checkpoint: Checkpoint, sequence: int) -> str:
    """Of the ranks that wrote the checkpoint; earlier starts of the run may have had others."""
    tensor, devices = checkpoint.tensor, checkpoint.devices
    said = [f"{devices // (tensor * sequence):,} data parallel"]
    if tensor > 1:
        said.append(f"every matrix divided over {tensor:,} (tensor parallel)")
    if sequence > 1:
        said.append(f"every sequence divided over {sequence:,} (Ulysses)")
    return f"{devices:,} workers at this step: {', '.join(said)}"


def _offload(zero: Mapping[str, Any]) -> str:
    found = [
        f"{what} on {place['device']}"
        for key, what in (("offload_optimizer", "optimizer states"), ("offload_param", "parameters"))
        if (place := zero.get(key)) and place.get("device", "none") != "none"
    ]
    return f", {' and '.join(found)}" if found else ""


def _data(data: Mapping[str, Any], prefixes: Sequence[str], tokens: int) -> str:
    """A row for each pair. Its share is that of the sequences; how often it was read follows from the share."""
    entries, weights = data["pairs"], data["weights"]
    whole = math.fsum(weights)
    lines = ["| Pair | Tokens | Documents | Share of the sequences | Read |", "|---|---:|---:|---:|---:|"]
    for number, (entry, weight) in enumerate(zip(entries, weights, strict=True)):
        # Only then do the names and the numbers belong together.
        name = _base(prefixes[number]) if len(prefixes) == len(entries) else f"pair {number + 1}, its name unknown"
        used = entry["tokens"] * _learnt(entry)
        times = f"≈ {tokens * weight / whole / used:.2f} times" if used and whole else UNKNOWN
        share = f"{weight / whole:.2%}" if whole else UNKNOWN
        lines.append(f"| {_cell(name)} | {entry['tokens']:,} | {entry['documents']:,} | {share} | {times} |")
    kept = any(_learnt(entry) < 1 for entry in entries)
    note = "\n\nA part of the documents of every pair was kept for validation." if kept else ""
    return "\n".join(lines) + note


def _learnt(entry: Mapping[str, Any]) -> float:
    """The share of a pair's documents that was not kept for validation; `part` is (first, how many)."""
    return float(entry["part"][1] / entry["documents"]) if entry["documents"] else 0.0


def _output(manifest: Mapping[str, Any], prefixes: Sequence[str]) -> str:
    """What `taojin tokenize` says of the output that pairs are from."""
    used = {_base(prefix) for prefix in prefixes}
    lines = [f"`{_cell(manifest['name'])}`, as `taojin tokenize` wrote it:", ""]
    tokenizer = manifest.get("tokenizer") or {}
    if tokenizer.get("path"):
        titles = {"kind": "", "vocab_size": "ids below ", "eod_token": "end of document "}
        known = [f"{title}`{_cell(tokenizer[key])}`" for key, title in titles.items() if tokenizer.get(key)]
        lines.append(f"- tokenizer `{_base(tokenizer['path'])}`" + (f" ({', '.join(known)})" if known else ""))
    for title, key in (("sources", "by_source"), ("languages", "by_language")):
        if counts := (manifest.get("counts") or {}).get(key):
            lines.append(f"- {title} by tokens: {_largest(counts)}")
    sums = [(pair["name"], _checksums(pair)) for pair in manifest.get("pairs", []) if pair["name"] in used]
    lines += [f"- `{_cell(name)}`: {found}" for name, found in sums if found]
    return "\n".join(lines)


def _largest(counts: Mapping[str, Mapping[str, int]]) -> str:
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1]["tokens"], entry[0]))
    shown = [f"{_cell(name) or 'without a name'} {found['tokens']:,}" for name, found in ranked[:SHOWN_SOURCES]]
    return ", ".join(shown) + (f" and {len(ranked) - SHOWN_SOURCES:,} more" if len(ranked) > SHOWN_SOURCES else "")


def _checksums(pair: Mapping[str, Any]) -> str:
    entries = [entry for entry in (pair.get("files") or {}).values() if entry["name"].endswith((".bin", ".idx"))]
    # Of a file that is written in parts only the parts' are known.
    return ", ".join(f"{Path(entry['name']).suffix} XXH3 {entry['xxh3']}" for entry in entries if entry["xxh3"])


def _results(metrics: Mapping[int, Mapping[str, float]], config: Mapping[str, Any]) -> str:
    validation = ", ".join(_base(source["prefix"]) for source in config.get("validation") or ())
    if not validation and config.get("validation_share"):
        validation = "the documents kept for it"
    rows = []
    for key, title, form in (
        ("loss", "Training loss", "{:.4f}"),
        ("validation_loss", f"Validation loss ({_cell(validation)})" if validation else "Validation loss", "{:.4f}"),
        ("validation_perplexity", "Validation perplexity", "{:.2f}"),
        ("choice_accuracy", "Multiple choice, mean accuracy of the subjects", "{:.2%}"),
        ("choice_standard_error", "… its standard error", "{:.2%}"),
    ):
        if (found := _last(metrics, key)) is not None:
            step, value = found
            rows.append((title, f"{form.format(value)} at step {step:,}"))
    return _table(rows) if rows else "The run kept no numbers of this step."


def _cost(metrics: Mapping[int, Mapping[str, float]], config: Mapping[str, Any]) -> list[str]:
    hours, money = _last(metrics, "device_hours"), _last(metrics, "money")
    said = [f"{hours[1]:,.1f} device-hours"] if hours else []
    if money:
        # The config of a start is kept without what the user left out.
        default = TrainConfig.model_fields["currency"].default if "price_per_device_hour" in config else ""
        said.append(f"{money[1]:,.2f} {config.get('currency', default)}".rstrip())
    return ["## Cost", f"{', '.join(said)}, to this step."] if said else []


def _loading(name: str, files: Sequence[str], outputs: Sequence[Mapping[str, Any]]) -> str:
    has_tokenizer = bool(TOKENIZER_FILES & set(files))
    quoted, word = json.dumps(name, ensure_ascii=False), shlex.quote(name)
    code = [f'model = AutoModelForCausalLM.from_pretrained({quoted}, dtype="auto")']
    if has_tokenizer:
        code.append(f"tokenizer = AutoTokenizer.from_pretrained({quoted})")
    names = "AutoModelForCausalLM, AutoTokenizer" if has_tokenizer else "AutoModelForCausalLM"
    parts = ["\n".join(["```python", f"from transformers import {names}", "", *code, "```"])]
    if not has_tokenizer:
        paths = [(output.get("tokenizer") or {}).get("path") for output in outputs]
        known = ", ".join(sorted({f"`{_cell(_base(path))}`" for path in paths if path}))
        needed = known or "the one that its pairs were written with"
        parts.append(f"There is no tokenizer in this folder. What follows needs {needed}.")
    evaluate = f"lm_eval --model hf --model_args pretrained={word},dtype=auto --tasks ceval-valid"
    parts.append("\n".join(["```sh", f"vllm serve {word}", evaluate, "```"]))
    return "\n\n".join(parts)


def _limits(config: Mapping[str, Any], metrics: Mapping[int, Mapping[str, float]]) -> str:
    if config.get("loss_mask"):
        kind = "It was tuned on the answers of its data, and on nothing else: no preferences, no safety training."
    elif _fresh(config):
        kind = "A base model: it continues text. It follows no instructions and was not aligned or made safe."
    else:
        kind = "It was trained on text alone: nothing in this run aligned it or made it safe."
    measured = bool(_last(metrics, "validation_loss") or _last(metrics, "choice_accuracy"))
    seen = "Nothing but the results above was measured" if measured else "Nothing but its training loss was measured"
    return (
        f"{kind} {seen}: neither what it knows, nor what it repeats of its data, nor its biases. Whether texts of a "
        f"benchmark were among its data is unknown."
    )


# ---------------------------------------------------------------------------- small things


def _last(metrics: Mapping[int, Mapping[str, float]], key: str) -> tuple[int, float] | None:
    """(step, value) of the newest row that has it."""
    return next(((step, metrics[step][key]) for step in sorted(metrics, reverse=True) if key in metrics[step]), None)


def _source(config: Mapping[str, Any]) -> str:
    return str(config.get("model") or "").rstrip("/")


def _fresh(config: Mapping[str, Any]) -> bool | None:
    """Whether the run began with fresh weights; None where it does not say."""
    return _source(config).endswith(".json") if _source(config) else None


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _cell(text: str) -> str:
    """On one line, and no border of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("`", "'")


def _table(rows: Rows) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {title} | {_cell(value)} |" for title, value in rows)])
