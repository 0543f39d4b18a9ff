"""The config of tokenization. `taojin.core.job` has the fields that every job over shards shares.

Everything but the run fields (address, num_cpus, quiet) is frozen with the plan of PREFIX.work: pieces, pairs and
provenance are functions of it and of the input.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from taojin.core.config import Config
from taojin.core.job import Reading, ShardJob
from taojin.tokenize.split import parse_split

# Rises with every change of what is written from the same input and settings.
TOKENIZE_FORMAT = 1
# The fast backend gains a tenth from four times the batch of the other stages, and nothing from more.
ENCODE_BATCH_BYTES = 16_000_000
_RUN_FIELDS = ("input", "output", "work", "address", "num_cpus", "quiet", "tokenizer", "decisions", "chat_template")


class TokenizeConfig(ShardJob):
    """Tokenize documents into Megatron .bin/.idx pairs: split, traceable, checkable; same input, same bytes."""

    input: tuple[str, ...] = ()
    """files, folders, globs or s3:// URIs of Parquet and JSONL shards; or name --decisions"""
    output: str
    """PREFIX of the pairs: PREFIX.bin, .idx and .parquet (provenance), with PREFIX_<split> where there is a split"""
    decisions: str | None = None
    """a finished WORK folder of taojin dedup or quality (or WORK/decide-…): tokenize what it keeps of its input"""

    mask: tuple[str, ...] | None = None
    """with --decisions: kinds of personal data to mask, or none (default: what that run masked as it wrote)"""
    work: str | None = None
    """folder for plan and pieces (default: PREFIX.work); a rerun resumes from it, check finds the input by it"""
    text_column: str = ""
    """the column that holds the document (default: text; with --chat messages, or response beside a prompt)"""
    source_column: str = "source"
    """the column that says where it comes from, for counts and --by-source; may be absent"""

    tokenizer: str
    """a tokenizer.json, a sentencepiece .model, a tiktoken file, or a Hugging Face folder that holds one"""
    tokenizer_pattern: str = ""
    """the regular expression that a tiktoken file of an unknown name splits texts with"""
    eod: str | None = None
    """the token that ends a document, by its text or id (default: the tokenizer's end of sequence)"""
    append_eod: bool = True
    """end every document with that token"""
    add_special_tokens: bool = False
    """also what the tokenizer's own template adds around a text, such as the BOS of Llama"""
    special_in_text: Literal["encode", "plain"] = "encode"
    """special tokens that stand in a text: encode them as such, as Megatron's tool does, or as plain text"""
    backend: Literal["auto", "gigatoken", "reference"] = "auto"
    """auto: the fast backend where it agrees with the reference library on a sample of this corpus"""
    level: Literal["document", "sentence"] = "document"
    """what a sequence of the pair is: a document, or each of its sentences"""

    split: str = ""
    """shares of documents by name, such as train=0.98,valid=0.02; near-duplicates stay on one side"""
    seed: int = 0
    """of the split and of the shuffle"""
    shuffle: bool = False
    """put the documents of every pair into a random order"""
    shard_tokens: Annotated[int, Field(ge=0)] = 0
    """cut pairs of at most this many tokens, PREFIX_00000 and so on (0: one pair)"""
    by_source: bool = False
    """a pair for each source, PREFIX_<source>"""
    weights: tuple[str, ...] = ()
    """factors of sources in the blend file, such as wiki=2 code=0.5; others have 1; needs --by-source"""
    language_column: str = "language"
    """a column that tells the language, for the counts; may be absent"""

    chat: bool = False
    """records are conversations: write a pair and a loss mask, by the tokenizer's chat template"""
    prompt_column: str | None = None
    """with --chat: the column of the prompt, where records are prompt and response, not messages"""
    chat_template: str | None = None
    """with --chat: a file with the template (default: the tokenizer's own)"""
    chat_date: str = ""
    """with --chat: the day (YYYY-MM-DD) that a template asks for, the same in every run"""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """with --chat: what is learnt: every answer, the last one, or everything"""

    @model_validator(mode="before")
    @classmethod
    def _name_text_column(cls, values: dict[str, Any]) -> dict[str, Any]:
        prompted = "response" if values.get("prompt_column") else "messages"
        return {**values, "text_column": values.get("text_column") or (prompted if values.get("chat") else "text")}

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_split(self.split)
        if bool(self.input) == (self.decisions is not None):
            raise ValueError("one of --input and --decisions is needed, and not both")
        if self.mask is not None and self.decisions is None:
            raise ValueError("--mask needs --decisions: what was read as it is, is encoded as it is")
        if self.decisions is not None:
            fields = {name: ShardJob.model_fields[name].default for name in self._reading_fields()}
            changed = [name for name, default in fields.items() if getattr(self, name) != default]
            if changed:
                flag = "--" + changed[0].replace("_", "-")
                raise ValueError(f"{flag} has no meaning with --decisions: the input is read as that run read it")
        if self.chat and (self.decisions is not None or self.repair or self.level == "sentence"):
            raise ValueError("--chat goes with --input, without --repair, at the level of documents")
        if not self.chat and (
            self.prompt_column or self.chat_template or self.chat_date or self.train_on != "assistant"
        ):
            raise ValueError("--prompt-column, --chat-template, --chat-date and --train-on need --chat")
        if self.chat and self.add_special_tokens:
            raise ValueError("--add-special-tokens has no meaning with --chat: the template writes what is needed")
        if self.weights and not self.by_source:
            raise ValueError("--weights needs --by-source: a blend weighs pairs")
        check_prefix(self.output)
        return self

    @staticmethod
    def _reading_fields() -> tuple[str, ...]:
        return (
            "text_column",
            "id_column",
            "source_column",
            "max_document_mb",
            "unit_mb",
            "skip_bad_units",
            "repair",
        )

    @property
    def reading(self) -> Reading:
        structured = self.chat and not self.prompt_column
        return super().reading._replace(structured=structured, batch_bytes=ENCODE_BATCH_BYTES)

    def scan_part(self) -> dict[str, Any]:
        """Everything that pieces and pairs depend on but the files it names, which the driver adds by their content."""
        shared = super().scan_part()
        own = {name: getattr(self, name) for name in TokenizeConfig.model_fields if name not in _RUN_FIELDS}
        return {**own, **shared, "formats": {**shared["formats"], "pieces": TOKENIZE_FORMAT}}


def check_prefix(prefix: str) -> None:
    """Raise ValueError for a PREFIX that a blend file cannot name."""
    if re.search(r"\s", prefix.rpartition("/")[2]):
        raise ValueError(f"--output {prefix!r}: a blend file separates prefixes by white space; use none in it")


class MergeConfig(Config):
    """Merge pairs into one: what tokenizers and Megatron's tools wrote, joined by offsets, nothing encoded again."""

    input: Annotated[tuple[str, ...], Field(min_length=1)]
    """prefixes of the pairs, in the order of their documents"""
    output: str
    """PREFIX of the pair that is made"""
    address: str | None = None
    """a Ray cluster (auto, ray://…, host:port; default: RAY_ADDRESS, else an embedded Ray on this machine)"""
    num_cpus: Annotated[int | None, Field(ge=0)] = None
    """CPUs to use; 0 runs everything in this process, without Ray"""
    quiet: bool = False
    """no progress on stderr"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_prefix(self.output)
        return self
