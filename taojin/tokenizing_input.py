"""What `taojin tokenize` looks at before its first task: tokenizer, input, plan, backend. Whatever it would refuse is
refused here."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taojin.core.config import fingerprint
from taojin.core.corpus import EXTRA_COLUMN, Plan, make_plan
from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import Folder, resolve
from taojin.core.uris import is_uri, split_query
from taojin.core.write import Extra, WriteContext
from taojin.frozen import check_named_columns
from taojin.jobs import EDITS, LANGUAGE_FIELDS, edits_of
from taojin.opened import missing_input, open_work, split_decision
from taojin.quality.config import QualityConfig
from taojin.tokenize.backends import Choice, choose_backend
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenize.documents import Input, Tally, read_documents
from taojin.tokenize.tokenizer_file import Facts, TokenizerFile, describe, read_tokenizer

BACKEND = "backend.json"
SAMPLE_BYTES = 400_000
# A name of a file has 255 bytes; split, source, number, suffixes and a temporary ending need room.
LONGEST_STEM = 100


def open_tokenizer(config: TokenizeConfig) -> tuple[TokenizerFile, Facts]:
    """The tokenizer and what is known of it. Raises ConfigError where the config asks for what it has not."""
    file = read_tokenizer(config.tokenizer, pattern=config.tokenizer_pattern)
    facts = describe(file, eod=config.eod, add_special_tokens=config.add_special_tokens)
    if config.append_eod and facts.eod is None:
        raise ConfigError(
            f"--tokenizer {config.tokenizer}: no end-of-document token is known of it; name one with --eod, or go "
            "without with --no-append-eod"
        )
    if config.chat:
        from taojin.tokenize.chat import ChatEncoder

        ChatEncoder(file, chat_template(config), config.train_on)
    if config.append_eod and facts.suffix[-1:] == (facts.eod,):
        raise ConfigError(
            f"--add-special-tokens: this tokenizer itself ends a text with {facts.eod_token}, which --append-eod would "
            "write twice; add --no-append-eod"
        )
    return file, facts


def split_prefix(prefix: str) -> tuple[Folder, str]:
    """(folder, stem) of a PREFIX; raises ConfigError for a folder's name."""
    path, query = split_query(prefix)
    folder, slash, stem = path.rpartition("/")
    if not stem or prefix.partition("?")[0].endswith("/"):
        raise ConfigError(f"--output {prefix}: expected a PREFIX of files, as in data/zh, found a folder")
    if stem in (".", "..") or len(stem.encode()) > LONGEST_STEM:
        found = f"a name of {len(stem.encode())} bytes" if stem not in (".", "..") else "a folder"
        raise ConfigError(
            f"--output {prefix[:60]}: expected a PREFIX of files of at most {LONGEST_STEM} bytes, as in data/zh, "
            f"found {found}"
        )
    if is_uri(path) and not is_uri(folder):
        raise ConfigError(f"--output {prefix}: expected a PREFIX of files, as in s3://bucket/zh, found a bucket")
    return Folder((folder or ("/" if slash else ".")) + query), stem


def open_input(config: TokenizeConfig, work: Folder) -> tuple[Input, Plan]:
    """What is read, and its plan as it would be made now. Raises InputError."""
    source, plan = open_decisions(config, work) if config.decisions is not None else open_shards(config)
    columns = ", ".join(f"{field.name} ({field.type})" for field in plan.schema)
    if config.by_source and source.reading.source not in plan.schema.names:
        raise InputError(f"--by-source needs a source column; there is no {source.reading.source!r} among: {columns}")
    if config.language_column in plan.schema.names:
        kind = plan.schema.field(config.language_column).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise InputError(
                f"--language-column: expected text in {config.language_column!r}, found {kind}; choose another"
            )
    # Of JSONL, fields without a meaning are in one column.
    if config.prompt_column and not {config.prompt_column, EXTRA_COLUMN} & set(plan.schema.names):
        raise InputError(f"no column {config.prompt_column!r} for --prompt-column; there are: {columns}")
    return source, plan


def open_shards(config: TokenizeConfig) -> tuple[Input, Plan]:
    """Shards as they are."""
    plan = make_plan(
        config.input,
        text_column=config.text_column,
        id_column=config.id_column,
        source_column=config.source_column,
        unit_bytes=int(config.unit_mb * 1e6),
        entries_per_document=0,
        config={},
        skip_bad=config.skip_bad_units,
        keep_ours=True,
        structured=config.reading.structured,
    )
    check_named_columns(config, plan)
    return Input(plan, config.reading, config.language_column, config.prompt_column or ""), plan


def open_decisions(config: TokenizeConfig, work: Folder) -> tuple[Input, Plan]:
    """The input of a finished WORK folder, with what its decisions keep."""
    name = str(config.decisions)
    other, _ = split_decision(name)
    if other.exists("plan.json") and "pieces" in other.read_json("plan.json")["config"]["formats"]:
        raise InputError(
            f"--decisions {name}: expected a WORK folder of taojin dedup or quality, found one of tokenize"
        )
    opened = open_work(name)
    corpus = opened.corpus
    if reason := missing_input(corpus, np.unique(corpus.ordinals.shard_first[:-1])):
        raise InputError(f"--decisions {name}: {reason}")
    theirs = corpus.view.folder
    extras: tuple[Extra, ...] = ()
    language = config.language_column
    measured = isinstance(corpus.config, QualityConfig) and corpus.config.measures and corpus.config.language
    if language not in corpus.plan.schema.names and measured:
        extras, language = (Extra(theirs.child("signals"), LANGUAGE_FIELDS[:1]),), LANGUAGE_FIELDS[0].name
    mask = mask_of(config, opened.decide)
    edits = edits_of(corpus.config.model_copy(update={"mask": mask}), theirs)
    kept = WriteContext(corpus.plan, corpus.config, corpus.ordinals, opened.decide, work, extras, edits)
    frozen = {"decisions": theirs.uri, "decide": opened.decide.name, "reading": corpus.plan.config, "mask": mask}
    return Input(corpus.plan, corpus.config.reading, language, "", kept), corpus.plan._replace(config=frozen)


def mask_of(config: TokenizeConfig, decide: Folder) -> tuple[str, ...]:
    """The kinds of personal data to mask: those that were named, else those of the run that decided."""
    from taojin.quality.personal import KINDS

    if config.mask is None:
        return tuple(decide.read_json(EDITS)["mask"]) if decide.exists(EDITS) else ()
    kinds = tuple(kind for kind in config.mask if kind != "none")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"--mask {unknown[0]}: expected none, or some of {', '.join(KINDS)}")
    return kinds


def frozen_plan(config: TokenizeConfig, fresh: Plan, file: TokenizerFile, facts: Facts) -> Plan:
    """The plan with everything that the pairs depend on."""
    part = config.scan_part()
    contents = {"tokenizer": [file.fingerprint, facts.eod, facts.eod_token], "chat_template": chat_template(config)}
    formats = {**part["formats"], **{name: fingerprint(value) for name, value in contents.items() if value}}
    return fresh._replace(config={**part, **fresh.config, "formats": formats})


def chat_template(config: TokenizeConfig) -> str:
    """The text of --chat-template, "" without one."""
    if config.chat_template is None:
        return ""
    filesystem, path = resolve(config.chat_template)
    try:
        with filesystem.open_input_stream(path) as stream:
            text = bytes(stream.read()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {config.chat_template}: cannot be read: {error}") from None
    if not text.strip():
        raise ConfigError(f"--chat-template {config.chat_template}: expected a template, found an empty file")
    return text


def chosen_backend(config: TokenizeConfig, work: Folder, file: TokenizerFile, source: Input) -> Choice:
    """The backend and why: the first run's choice, which those that resume it keep, or a new one."""
    if config.chat:
        return Choice("reference", "conversations need the places of tokens in the text")
    if work.exists(BACKEND):
        return Choice(**work.read_json(BACKEND))
    return choose_backend(file, sample_of(source), wanted=config.backend, plain=config.special_in_text == "plain")


def sample_of(source: Input) -> pa.LargeStringArray:
    """Texts from the first, the middle and the last unit, SAMPLE_BYTES in all."""
    units = len(source.plan.units)
    wanted = sorted({0, units // 2, units - 1}) if units else []
    texts: list[pa.Array] = [pa.array([], pa.large_string())]
    for unit in wanted:
        for documents in islice(read_documents(source, unit, Tally()), 1):
            texts += [first_bytes(documents.texts, SAMPLE_BYTES // len(wanted))]
    return pa.concat_arrays(texts)


def first_bytes(texts: pa.LargeStringArray, size: int) -> pa.LargeStringArray:
    """The first texts, at least one, of about `size` bytes."""
    lengths = np.cumsum(pc.binary_length(texts).to_numpy())
    return texts.slice(0, max(1, int(np.searchsorted(lengths, size))))
