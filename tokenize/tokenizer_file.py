"""A tokenizer as bytes: read once from a file or folder, sent to every node, and what must be known about it.

In: a Hugging Face `tokenizer.json`, a tiktoken rank file or a sentencepiece model, local or in an object store; or a
folder that holds one. No name is looked up on a network: one that is no path is an error. The kind is told by the
content, since a `tokenizer.model` can be either of two. Out: `TokenizerFile` (picklable, whole) and `Facts`.

Cost: reading is one pass over the bytes; `describe` parses the JSON once (0.1 s for 128,000 entries).
Encoding is left to `taojin.tokenize.backends`, templates of chats to `taojin.tokenize.chat`.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import orjson
import pyarrow.fs as pafs
import xxhash

from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import first_line, resolve, with_retries
from taojin.core.uris import with_suffix
from taojin.tokenize.known_ranks import KNOWN_RANKS
from taojin.tokenize.line_borders import steps_of

Json: TypeAlias = dict[str, Any]

# In the order in which a folder is searched; "tiktoken.model" is Moonshot's name for a rank file.
_NAMES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")

# What ends a document, where tokenizer_config.json does not say it, most telling first. "<|eot_id|>" and its like end a
# *turn* of a chat and come last: they are taken only where a vocabulary has nothing that ends a text.
WELL_KNOWN_EOD = (
    "<|endoftext|>",  # GPT-2, OpenAI's encodings, Qwen, OLMo
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "<|end_of_text|>",  # Llama 3
    "</s>",  # sentencepiece's own name: Llama 2, Mistral, Baichuan
    "<eos>",  # Gemma
    "[EOS]",  # Moonshot
    "<|eot_id|>",  # Llama 3, end of a turn
    "<|im_end|>",  # ChatML, end of a turn
)


class TokenizerFile(NamedTuple):
    """`kind`: "json" | "tiktoken" | "sentencepiece". `data`: tokenizer.json, rank file or model. Of tiktoken:
    `pattern`, `specials`, and `form` ("NFC" or ""), the normal form that texts are brought to first. `config`:
    tokenizer_config.json beside it, b"" if none. `chat_template`: "" if none."""

    path: str
    kind: str
    data: bytes
    pattern: str = ""
    specials: tuple[tuple[str, int], ...] = ()
    config: bytes = b""
    chat_template: str = ""
    form: str = ""

    @property
    def fingerprint(self) -> str:
        """XXH3-128 of everything that changes ids: not of the path, nor of what a config says besides its tokens."""
        named = [(name, config_token(self, name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")]
        settings = repr((self.kind, self.pattern, self.specials, self.form, named, self.chat_template))
        hasher = xxhash.xxh3_128(settings.encode("utf-8", "surrogatepass"))
        hasher.update(self.data)
        return str(hasher.hexdigest())


class Facts(NamedTuple):
    """`vocab_size`: 1 + the largest id, added tokens included. `eod`: None where the vocabulary has none. `prefix`,
    `suffix`: ids that the tokenizer's own template adds around a text, () unless asked for. `lossless`: decoding gives
    every text back, byte for byte. `specials`: the texts of special tokens."""

    kind: str
    fingerprint: str
    vocab_size: int
    eod: int | None
    eod_token: str
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    lossless: bool
    specials: tuple[str, ...]


def read_tokenizer(path: str, *, pattern: str = "") -> TokenizerFile:
    """Read a tokenizer from a file or from a folder with tokenizer.json, else tokenizer.model, else a rank file.

    `pattern` is for tiktoken rank files alone: the regular expression that splits text, or a name of `KNOWN_RANKS`,
    whose special tokens come with it. Raises InputError for what is missing or is no tokenizer, ConfigError for a
    pattern that is needed and not given, or given and not needed.
    """
    return with_retries(lambda: _read_tokenizer(path, pattern))


def _read_tokenizer(path: str, pattern: str) -> TokenizerFile:
    filesystem, inner = resolve(path)
    info = filesystem.get_file_info(inner)
    if info.type == pafs.FileType.NotFound:
        raise InputError(
            f"{path}: no tokenizer there. Give a local file or folder; names of a model hub are not looked up"
        )
    folder, _, name = inner.rpartition("/")
    if info.type == pafs.FileType.Directory:
        folder = inner
        name = _find(filesystem, folder, path)
    data = _read(filesystem, f"{folder}/{name}")
    beside = {
        entry: _read(filesystem, f"{folder}/{entry}")
        for entry in ("tokenizer_config.json", "chat_template.jinja")
        if filesystem.get_file_info(f"{folder}/{entry}").type == pafs.FileType.File
    }
    config = beside.get("tokenizer_config.json", b"")
    where = path if info.type == pafs.FileType.File else with_suffix(path, f"/{name}")
    parsed_config = _object(config, f"{where}: tokenizer_config.json beside it") if config else {}
    template = _chat_template(parsed_config, beside.get("chat_template.jinja"))
    kind = _kind_of(data, where)
    if pattern and kind != "tiktoken":
        raise ConfigError(
            f"--tokenizer-pattern is for tiktoken rank files; {where} is a {kind} tokenizer: leave it out"
        )
    if kind != "tiktoken":
        return TokenizerFile(where, kind, data, config=config, chat_template=template)
    known = KNOWN_RANKS.get(pattern or name.removesuffix(".tiktoken"))
    if known is None and not pattern:
        raise ConfigError(
            f"{where}: a tiktoken rank file does not say how text is split: give --tokenizer-pattern, a regular "
            f"expression or one of {', '.join(KNOWN_RANKS)}"
        )
    count = sum(1 for _ in read_ranks(data, where))
    if known is not None and count != known.ranks:
        raise InputError(f"{where}: expected {known.ranks:,} ranks, found {count:,}: cut short, or another tokenizer")
    specials = known.specials if known is not None else _specials_of(parsed_config)
    form = known.form if known is not None else ""
    return TokenizerFile(where, kind, data, known.pattern if known else pattern, specials, config, template, form)


def describe(file: TokenizerFile, *, eod: str | None = None, add_special_tokens: bool = False) -> Facts:
    """Everything that is told of a tokenizer before it encodes.

    `eod` names the end of a document by its text, or by its id in digits; else the eos_token of tokenizer_config.json
    counts, else the first of `WELL_KNOWN_EOD` that the vocabulary has. Raises ConfigError for one that it lacks.
    """
    if file.kind == "json":
        ids, specials, lossless = _facts_of_json(parse_json(file))
    elif file.kind == "tiktoken":
        ranks = dict(read_ranks(file.data, file.path))
        ids = {token.decode("utf-8", "surrogateescape"): rank for token, rank in ranks.items()} | dict(file.specials)
        specials = tuple(token for token, _ in file.specials)
        # A pattern of one's own may leave characters out, which tiktoken then drops.
        known = any(file.pattern == ranks.pattern for ranks in KNOWN_RANKS.values())
        lossless = known and not file.form and all(bytes([byte]) in ranks for byte in range(256))
    else:
        processor = load_sentencepiece(file)
        ids = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
        specials = tuple(token for token, number in ids.items() if processor.is_control(number))
        # "▁" in a text comes back as a space.
        lossless = False
    vocab_size = 1 + max(ids.values())
    number, token = _find_eod(file, ids, vocab_size, eod)
    prefix, suffix = _template(file, ids) if add_special_tokens else ((), ())
    return Facts(file.kind, file.fingerprint, vocab_size, number, token, prefix, suffix, lossless, specials)


def parse_json(file: TokenizerFile) -> Json:
    """The tokenizer.json as objects; raises InputError where it is none."""
    return _json_tokenizer(file.data, file.path)


def read_ranks(data: bytes, where: str) -> Iterator[tuple[bytes, int]]:
    """(token, rank) of each line of a tiktoken rank file."""
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            yield base64.b64decode(token, validate=True), int(rank)
        except (ValueError, binascii.Error):
            shown = line[:40].decode("utf-8", "replace")
            raise InputError(f"{where}:{number}: expected a token in base64 and its rank, found {shown!r}") from None


def load_sentencepiece(file: TokenizerFile) -> Any:
    """A SentencePieceProcessor. Raises InputError for a model that is none, and where the library is missing."""
    try:
        import sentencepiece
    except ImportError:
        raise InputError(f"{file.path}: a sentencepiece model needs the library: pip install sentencepiece") from None
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=file.data)
    except (RuntimeError, OSError):
        processor = None
    if processor is None or not file.data:
        raise InputError(f"{file.path}: expected a sentencepiece model, found something else or one cut short")
    return processor


def config_token(file: TokenizerFile, name: str) -> str:
    """A token that tokenizer_config.json names (`eos_token` …), as text; "" where it names none."""
    token = orjson.loads(file.config).get(name) if file.config else None
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _find(filesystem: pafs.FileSystem, folder: str, path: str) -> str:
    infos = filesystem.get_file_info(pafs.FileSelector(folder))
    names = sorted(info.base_name for info in infos if info.type == pafs.FileType.File)
    ranks = [name for name in names if name.endswith(".tiktoken")]
    found = next((name for name in _NAMES if name in names), None)
    if found is None and len(ranks) > 1:
        raise InputError(f"{path}: expected one rank file, found {', '.join(ranks)}: name the file")
    if found is None and not ranks:
        raise InputError(
            f"{path}: expected tokenizer.json, tokenizer.model or a .tiktoken file in the folder, found none"
        )
    return found or ranks[0]


def _read(filesystem: pafs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _kind_of(data: bytes, where: str) -> str:
    if data.lstrip()[:1] in (b"{", b"["):
        _json_tokenizer(data, where)
        return "json"
    token, _, rank = data[:4096].partition(b"\n")[0].rpartition(b" ")
    if token and rank.strip().isdigit():
        return "tiktoken"
    load_sentencepiece(TokenizerFile(where, "sentencepiece", data))
    return "sentencepiece"


def _object(data: bytes, where: str) -> Json:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: expected JSON, found something else or a file cut short ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def _json_tokenizer(data: bytes, where: str) -> Json:
    value = _object(data, where)
    model = value.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        keys = ", ".join(list(value)[:5]) or "nothing"
        raise InputError(f"{where}: expected a tokenizer.json with a model and its vocab, found {keys}")
    if model.get("dropout"):
        raise InputError(f"{where}: drops merges at random (dropout {model['dropout']}): set model.dropout to null")
    return value


def _chat_template(config: Json, file: bytes | None) -> str:
    if file is not None:
        return file.decode("utf-8", "replace")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        # Several, by name; the one that is used unless another is asked for is called "default".
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or ""
    return template if isinstance(template, str) else ""


def _specials_of(config: Json) -> tuple[tuple[str, int], ...]:
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return ()
    return tuple((str(token["content"]), int(number)) for number, token in added.items())


def _facts_of_json(tokenizer: Json) -> tuple[dict[str, int], tuple[str, ...], bool]:
    vocab = tokenizer["model"]["vocab"]
    # Unigram models list (piece, score) in the order of their ids.
    ids = dict(vocab) if isinstance(vocab, dict) else {piece[0]: number for number, piece in enumerate(vocab)}
    added = tokenizer.get("added_tokens") or []
    lossless = _keeps_every_byte(tokenizer) and not any(token.get("lstrip") or token.get("rstrip") for token in added)
    ids |= {token["content"]: token["id"] for token in added}
    return ids, tuple(token["content"] for token in added if token.get("special")), lossless


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`): a printable
    Latin-1 character stands for itself, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


def spells_bytes(tokenizer: Json) -> bool:
    """Whether entries of the vocabulary are bytes, written in `byte_alphabet`."""
    model = tokenizer["model"]
    steps = steps_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return (
        model.get("type") == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and [step["type"] for step in steps].count("ByteLevel") == 1
    )


def _keeps_every_byte(tokenizer: Json) -> bool:
    """Whether the ids of a text, each read as bytes, are the text: nothing is dropped, added or changed on the way."""
    steps = steps_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return (
        spells_bytes(tokenizer)
        and not steps_of(tokenizer.get("normalizer"), "normalizers")
        and all(step["type"] in ("ByteLevel", "Split", "Digits", "Punctuation") for step in steps)
        and not any(step.get("add_prefix_space") or step.get("behavior") == "Removed" for step in steps)
        and all(character in tokenizer["model"]["vocab"] for character in byte_alphabet())
    )


def _find_eod(file: TokenizerFile, ids: dict[str, int], vocab_size: int, eod: str | None) -> tuple[int | None, str]:
    if eod is not None:
        # Digits are entries of every vocabulary, too, but nobody ends a document with one.
        if eod.isascii() and eod.isdecimal() and int(eod) < vocab_size:
            return int(eod), next((token for token, number in ids.items() if number == int(eod)), "")
        if eod in ids and not eod.isdecimal():
            return ids[eod], eod
        raise ConfigError(f"--eod {eod}: the vocabulary of {file.path} ({vocab_size:,} ids) has no such token")
    named = config_token(file, "eos_token")
    if named and named not in ids:
        raise InputError(
            f"{file.path}: its tokenizer_config.json ends texts with {named}, which is no token: give --eod"
        )
    token = named or next((token for token in WELL_KNOWN_EOD if token in ids), "")
    return (ids[token], token) if token else (None, "")


def _template(file: TokenizerFile, ids: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if file.kind == "tiktoken":
        return (), ()
    if file.kind == "sentencepiece":
        # A model adds nothing by itself; Llama's tokenizer_config.json says what its code adds.
        config = orjson.loads(file.config) if file.config else {}
        around = ("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")
        named = [config_token(file, token) if config.get(flag) else "" for flag, token in around]
        prefix, suffix = ((ids[token],) if token in ids else () for token in named)
        return prefix, suffix
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(file.data)
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        raise InputError(f"{file.path}: tokenizers cannot read it: {first_line(error)}") from None
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise InputError(
        f"{file.path}: its post_processor changes the ids of the text itself: leave --add-special-tokens out"
    )
