"""What tests of `taojin check PREFIX` share: a tokenizer of bytes, findings by name, damage."""

from collections.abc import Sequence
from pathlib import Path

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.jobs import taojin

# The id of <|endoftext|> in it.
EOD = 256


def byte_tokenizer(path: Path, extra: int = 0) -> Path:
    """A tokenizer.json of 256 bytes and <|endoftext|>, id 256, and `extra` more entries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    vocabulary |= {f"unused {number}": 257 + number for number in range(extra)}
    tokenizer = Tokenizer(models.BPE({**vocabulary, "<|endoftext|>": 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(path))
    return path


def findings(prefix: Path, tokenizer: Path | None = None, flags: Sequence[object] = ()) -> dict[str, tuple[str, str]]:
    """invariant → (status, file and detail)."""
    flags = [*flags, *(["--tokenizer", tokenizer] if tokenizer else [])]
    outcome = taojin("check", prefix, "--json", *flags)
    assert outcome.out, outcome.err
    found = orjson.loads(outcome.out)["findings"]
    assert outcome.status == any(finding["status"] == "broken" for finding in found)
    return {finding["invariant"]: (finding["status"], f"{finding['file']}: {finding['detail']}") for finding in found}


def statuses(found: dict[str, tuple[str, str]]) -> set[str]:
    return {status for status, _ in found.values()}


def broken(prefix: Path, tokenizer: Path | None = None, flags: Sequence[object] = ()) -> dict[str, str]:
    """invariant → file and detail, of those that are broken."""
    found = findings(prefix, tokenizer, flags)
    return {name: detail for name, (status, detail) in found.items() if status == "broken"}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
