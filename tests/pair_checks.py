"""What tests of `taojin check PREFIX` share: a tokenizer of bytes, findings by name, damage."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from taojin.check import check_prefix, find_prefix
from taojin.core.storage import Folder

# The id of <|endoftext|> in it.
EOD = 256


def byte_tokenizer(path: Path, extra: int = 0, around: bool = False) -> Path:
    """A tokenizer.json of 256 bytes and <|endoftext|>, id 256, and `extra` more entries; around: with a template that
    puts the bytes 1 and 2 around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    vocabulary |= {f"unused {number}": 257 + number for number in range(extra)}
    tokenizer = Tokenizer(models.BPE({**vocabulary, "<|endoftext|>": 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    if around:
        ends = [(alphabet[1], 1), (alphabet[2], 2)]
        template = f"{alphabet[1]} $A {alphabet[2]}"
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    tokenizer.save(str(path))
    return path


def findings(
    prefix: Path, tokenizer: Path | None = None, work: str | None = None, sample: int = 200
) -> dict[str, tuple[str, str]]:
    """invariant → (status, file and detail)."""
    found = find_prefix(Folder(str(prefix)))
    assert found is not None
    report = check_prefix(found, work, str(tokenizer) if tokenizer else None, sample)
    return {finding.invariant: (finding.status, f"{finding.file}: {finding.detail}") for finding in report.findings}


def statuses(found: dict[str, tuple[str, str]]) -> set[str]:
    return {status for status, _ in found.values()}


def broken(prefix: Path, tokenizer: Path | None = None, work: str | None = None, sample: int = 200) -> dict[str, str]:
    """invariant → file and detail, of those that are broken."""
    found = findings(prefix, tokenizer, work, sample)
    return {name: detail for name, (status, detail) in found.items() if status == "broken"}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
