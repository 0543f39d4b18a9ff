"""Opens what an output of `taojin tokenize` was made from, for the proof that its tokens are those of its texts.

In: PREFIX.work (plan, rows of pieces), the input or the run with decisions, the tokenizer. Whatever of it is not there
any more, or not the same, is named, and the proof (`taojin.proofs_of_sample`) left out.
"""

from typing import Any

from taojin.core.corpus import Plan
from taojin.core.errors import InputError, UserError
from taojin.core.sidecars import Corpus
from taojin.core.storage import Folder
from taojin.core.uris import with_suffix
from taojin.opened import corpus_of
from taojin.proofs import BrokenError, Report
from taojin.proofs_of_sample import GoneError, prove_texts
from taojin.proofs_of_tokens import Tokens
from taojin.report import number
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenize.documents import Input
from taojin.tokenize.pieces import EncodeContext
from taojin.tokenize.tokenizer_file import TokenizerFile, describe, read_tokenizer
from taojin.tokenizing_input import open_decisions

# What a manifest tells of the tokenizer, as `Facts` has it.
TOLD = ("kind", "vocab_size", "eod", "eod_token", "prefix", "suffix", "lossless")


def check_tokenizer(report: Report, output: Tokens, tokenizer: str | None) -> TokenizerFile | None:
    """The tokenizer's file, proven to be what the manifest says; None where it is not at hand.

    Raises InputError for a --tokenizer that is not the one.
    """
    try:
        file = open_tokenizer(output, tokenizer)
    except InputError as error:
        if tokenizer:
            raise
        report.leave_out("tokenizer", f"{error} (--tokenizer)")
        return None
    return report.prove("tokenizer", file.path, lambda: prove_tokenizer(output, file))


def open_tokenizer(output: Tokens, tokenizer: str | None) -> TokenizerFile:
    """The file that the pairs were encoded with. Raises InputError where it is not there or another."""
    expected = output.manifest["tokenizer"]
    path = tokenizer or expected["path"]
    file = read_tokenizer(path, pattern=_settings(output).get("tokenizer_pattern", ""))
    if file.fingerprint != expected["fingerprint"]:
        flag = "--tokenizer " if tokenizer else ""
        raise InputError(f"{flag}{path}: not the tokenizer that {output.prefix.uri} was encoded with")
    return file


def prove_tokenizer(output: Tokens, file: TokenizerFile) -> tuple[TokenizerFile, str]:
    """Vocabulary, end of documents and what stands around a text are those of the file."""
    config, told = _settings(output), output.manifest["tokenizer"]
    facts = describe(file, eod=config.get("eod"), add_special_tokens=config.get("add_special_tokens", False))
    # The manifest of merged pairs has no settings: which token was to end a document is not known.
    names = ("kind", "vocab_size", "lossless") if output.merged else TOLD
    for name in names:
        found = getattr(facts, name)
        if told[name] != (list(found) if isinstance(found, tuple) else found):
            raise BrokenError(output.manifest_name, f"the tokenizer's {name} is {told[name]!r}, in its file {found!r}")
    return file, f"{file.path} is the file of the manifest's fingerprint, and has its vocabulary and special tokens"


def _settings(output: Tokens) -> dict[str, Any]:
    return output.manifest.get("config", {})


def check_texts(report: Report, output: Tokens, work_name: str | None, file: TokenizerFile | None, sample: int) -> None:
    """The proofs that need WORK and the input. Raises InputError for a --work that is none."""
    work = Folder(work_name or with_suffix(output.prefix.uri, ".work"))
    if not work.exists("plan.json"):
        if work_name:
            raise InputError(f"--work {work.uri}: expected a WORK folder (plan.json in it), found none")
        report.leave_out("work", f"{work.uri} is not there; no text was encoded again (--work)")
        return
    corpus = report.prove("work", work.child("plan.json").uri, lambda: prove_work(output, work))
    if corpus is None or not sample:
        return
    if file is None:
        report.leave_out("texts", "no text was encoded again: that takes the tokenizer")
        return
    try:
        context = encode_context(output, corpus, work, file)
        report.prove("texts", output.prefix.uri, lambda: prove_texts(output, context, corpus, sample))
    except (UserError, GoneError) as error:
        report.leave_out("texts", f"no text was encoded again: {error}")


def prove_work(output: Tokens, work: Folder) -> tuple[Corpus, str]:
    """WORK is the one that the pairs were written from."""
    where = work.child("plan.json").uri
    plan = Plan.from_json(work.read_json("plan.json"))
    theirs = [(shard["path"], shard["fingerprint"]) for shard in output.manifest["shards"]]
    if theirs != [(shard.path, shard.fingerprint) for shard in plan.shards] or plan.config != output.manifest["config"]:
        raise BrokenError(
            where, f"not the plan that {output.prefix.uri} was written from; name its own WORK with --work"
        )
    names = work.names("stats/encode")
    if len(names) != len(plan.units):
        raise BrokenError(where, f"{len(names)} of its {len(plan.units)} units are encoded")
    rows = [piece[2] for name in names for piece in work.read_json(f"stats/encode/{name}")["pieces"]]
    read = output.manifest["counts"]["read"]
    if sum(rows) != read:
        raise BrokenError(where, f"its units read {sum(rows):,} documents, in the manifest {read:,}")
    detail = f"{work.uri}: {number(len(plan.shards), 'shard')}, {number(len(plan.units), 'unit')}, the same plan"
    return corpus_of(work, plan, config_of(output, work), rows), detail


def config_of(output: Tokens, work: Folder) -> Any:
    """The config of the run, as the plan has it."""
    plan = output.manifest["config"]
    known = {name: value for name, value in plan.items() if name in TokenizeConfig.model_fields}
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in known.items()}
    values["tokenizer"] = output.manifest["tokenizer"]["path"]
    if "decisions" not in values:
        values["input"] = (work.uri,)
    return TokenizeConfig(**values, output=output.prefix.uri, work=work.uri)


def encode_context(output: Tokens, corpus: Corpus, work: Folder, file: TokenizerFile) -> EncodeContext:
    """What the run encoded with, but for the backend. Raises UserError where something is not there any more."""
    config: TokenizeConfig = corpus.config
    facts = describe(file, eod=config.eod, add_special_tokens=config.add_special_tokens)
    source = Input(corpus.plan, config.reading, config.language_column, config.prompt_column or "")
    if config.decisions is not None:
        decided = with_suffix(config.decisions, f"/{output.manifest['config']['decide']}")
        source, _ = open_decisions(config.model_copy(update={"decisions": decided}), work)
    return EncodeContext(source, work, config, file, facts, "reference", output.manifest["chat_template"])
