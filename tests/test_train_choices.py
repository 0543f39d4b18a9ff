"""Multiple choice by log-likelihood (train/choices.py, questions.py) and a model's folder judged by it and by pairs."""

import copy
import csv
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from taojin import cli
from taojin.core.errors import ConfigError, InputError, RunError
from taojin.train.choices import Choices, choice_numbers, common_prefix, log_likelihoods, prompt, summary
from taojin.train.evaluating import evaluate
from taojin.train.questions import Question, read_choices
from tests.megatron_pairs import write_pair
from tests.train_runs import TINY_LLAMA

for needed in ("torch", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

import torch  # noqa: E402  only where there is one

VOCABULARY = 320
LETTERS = "ABCD"
HEADER = ["id", "question", "A", "B", "C", "D", "answer", "explanation"]
Row = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes, and a token for the end of the prompt joined with A, as real vocabularies have."""
    return save_tokenizer(tmp_path_factory.mktemp("bytes"), join="：A")


def save_tokenizer(folder: Path, join: str = "") -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    if join:
        made = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(join)[0][0]
        for end in range(2, len(made) + 1):
            merges.append((made[: end - 1], made[end - 1]))
            vocabulary[made[:end]] = len(vocabulary)
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def made_rows(count: int, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    words = ["天地", "玄黄", "宇宙", "洪荒", "日月", "盈昃", "辰宿", "列张"]

    def text(low: int, high: int) -> str:
        return "".join(rng.choice(words, int(rng.integers(low, high))))

    return [
        {
            "id": number,
            "question": text(1, 9) + "____。",
            **{letter: text(1, 4) + str(place) for place, letter in enumerate(LETTERS)},
            "answer": LETTERS[int(rng.integers(4))],
            "explanation": "",
        }
        for number in range(count)
    ]


def write_csv(path: Path, rows: Sequence[Row], header: Sequence[str] = HEADER, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        lowered = [name.lower() for name in header]
        for row in rows:
            known = {name.lower(): value for name, value in row.items()}
            writer.writerow([known["id"] if name == "" else known[name] for name in lowered])
    return path


@pytest.fixture
def benchmark_set(tmp_path: Path) -> Path:
    """Two subjects as C-Eval has them: val/x_val.csv and dev/x_dev.csv."""
    for number, (subject, count) in enumerate({"accountant": 5, "law": 12}.items()):
        write_csv(tmp_path / "val" / f"{subject}_val.csv", made_rows(count, number))
        write_csv(tmp_path / "dev" / f"{subject}_dev.csv", made_rows(5, 10 + number))
    return tmp_path


class Bigram(torch.nn.Module):
    """What comes next depends on the last token alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.passes = 0

    def forward(self, input_ids: Any, use_cache: bool) -> Any:
        self.passes += 1
        return SimpleNamespace(logits=self.table[input_ids])


class SparingBigram(Bigram):
    def forward(self, input_ids: Any, use_cache: bool, logits_to_keep: Any = 0) -> Any:
        return super().forward(input_ids[:, logits_to_keep], use_cache)


def bigram_score(table: Any, context: Sequence[int], continuation: Sequence[int]) -> float:
    before = [context[-1], *continuation[:-1]]
    return float(sum(table[one].log_softmax(-1)[two] for one, two in zip(before, continuation, strict=True)))


def tiny_llama(**values: Any) -> Any:
    import transformers

    shape = {**TINY_LLAMA, "vocab_size": VOCABULARY, "max_position_embeddings": 2048, **values}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{key: value for key, value in shape.items() if key != "model_type"})
    )


def opened(paths: Sequence[Path], tokenizer: Path, examples: Sequence[Path] = (), **options: Any) -> Choices:
    options = {"sequence_length": 2048, "vocab_size": VOCABULARY, **options}
    return Choices.open(
        [str(path) for path in paths], [str(path) for path in examples], tokenizer=str(tokenizer), **options
    )


def naive_prompt(subject: str, row: Row, examples: Sequence[Row], by: str) -> str:
    text = f"以下是中国关于{subject}的单项选择题，请选出其中的正确答案。\n\n"
    for example in [*examples, row]:
        text += example["question"] + "\n"
        if by == "letter":
            text += "".join(f"{letter}. {example[letter]}\n" for letter in LETTERS)
        text += "答案："
        if example is not row:
            text += (example["answer"] if by == "letter" else example[example["answer"]]) + "\n\n"
    return text


def naive_scores(model: Any, tokenizer: Path, subject: str, row: Row, examples: Sequence[Row], by: str) -> list[float]:
    """One option after the other, each alone in a full pass."""
    encode = Tokenizer.from_file(str(tokenizer)).encode
    before = naive_prompt(subject, row, examples, by)
    options = [letter if by == "letter" else row[letter] for letter in LETTERS]
    wholes = [encode(before + option).ids for option in options]
    shared = 0
    while len({tuple(ids[: shared + 1]) for ids in [encode(before).ids, *wholes]}) == 1:
        shared += 1
    scores = []
    for option, ids in zip(options, wholes, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        score = sum(float(logits[place - 1, ids[place]]) for place in range(shared, len(ids)))
        scores.append(score / (len(option) if by == "content" else 1))
    return scores


# ---- files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_c_eval_and_cmmlu_and_json_lines_are_read_alike(tmp_path: Path, encoding: str) -> None:
    rows = made_rows(3)
    rows[1] |= {"question": 'A line,\nand "another"', "A": "1", "answer": "b"}
    files = [
        write_csv(tmp_path / "a" / "x_val.csv", rows, encoding=encoding),
        write_csv(tmp_path / "b" / "x.csv", rows, ["", "Question", "A", "B", "C", "D", "Answer"], encoding),
        tmp_path / "x_test.jsonl",
    ]
    lines = [json.dumps({**row, "A": int(row["A"])} if row["A"] == "1" else row, ensure_ascii=False) for row in rows]
    files[2].write_text("\n".join(lines) + "\n\n", encoding=encoding)
    found = [[question._replace(where="") for question in read_choices([str(file)])] for file in files]
    assert found[0] == found[1] == found[2]
    assert found[0][1] == Question("x", "x", 'A line,\nand "another"', ("1", *(rows[1][k] for k in "BCD")), 1, "")


def test_a_folder_is_its_files_and_the_subject_is_the_name_of_each(benchmark_set: Path) -> None:
    (benchmark_set / "val" / "notes.txt").write_text("not a question")
    (benchmark_set / "val" / "deeper").mkdir()
    found = read_choices([str(benchmark_set / "val")])
    assert [question.subject for question in found] == ["accountant"] * 5 + ["law"] * 12


def test_prompts_call_a_subject_by_the_chinese_name_that_c_eval_maps_it_to(benchmark_set: Path) -> None:
    mapping = {"accountant": ["Accountant", "注册会计师", "Other"], "law": "法学"}
    (benchmark_set / "val" / "subject_mapping.json").write_text(json.dumps(mapping))
    found = read_choices([str(benchmark_set / "val")])
    assert prompt(found[0].topic, found[0], [], "letter").startswith("以下是中国关于注册会计师的单项选择题，")
    assert (found[0].subject, found[-1].topic) == ("accountant", "法学")
    (benchmark_set / "val" / "subject_mapping.json").write_text('{"law": "法学"}')
    with pytest.raises(InputError, match="no such entry"):
        read_choices([str(benchmark_set / "val")])


GOOD = b"id,question,A,B,C,D,answer\n0,q,a,b,c,d,A\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", GOOD + b"1,q,a,b,c,d\n", "row 2: expected 7 fields"),
        ("x.csv", GOOD + b"1,q,a,b,c,d,E\n", "row 2: expected the answer A, B, C or D, found 'E'"),
        ("x.csv", GOOD + b"1,q,a,b, ,d,A\n", "row 2: expected text for C, found nothing"),
        ("x.csv", GOOD + b'1,"q,a,b,c,d,A\n', "row 2: expected CSV"),
        ("x.csv", GOOD + b"1,\xff\xfe,a,b,c,d,A\n", "expected UTF-8"),
        ("x.csv", b"id,question,A,B,C,D\n0,q,a,b,c,d\n", "row 1: .* found no answer among id, question"),
        ("x.csv", b"id,question,A,B,C,D,answer\n", "expected questions, found none"),
        ("x.csv", b"", "expected questions, found none"),
        ("x.jsonl", b'{"question": "q"}\n', "row 1: .* found no A, B, C, D, answer"),
        ("x.jsonl", b'\n{"question": \n', "row 1: expected a JSON object"),
        ("x.jsonl", b"[1]\n", "row 1: expected a JSON object, found a list"),
        ("x.jsonl", b'{"question":"q","A":null,"B":1,"C":2,"D":3,"answer":"A"}', "expected text for A, found null"),
        ("x.parquet", b"PAR1", r"expected a file of \.csv, \.jsonl"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it_and_the_row(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read_choices([str(tmp_path / name)])
    assert str(raised.value).startswith(str(tmp_path / name))
    assert "\n" not in str(raised.value)


def test_what_is_not_there_and_a_second_file_of_a_subject_are_refused(benchmark_set: Path) -> None:
    (benchmark_set / "empty").mkdir()
    for path, message in (("nowhere", "no such file"), ("empty", "directly in the folder, found none")):
        with pytest.raises(InputError, match=message):
            read_choices([str(benchmark_set / path)])
    with pytest.raises(InputError, match="accountant too: evaluate them apart"):
        read_choices([str(benchmark_set / "val"), str(benchmark_set / "dev")])


# ---- prompts and tokens


def decoded(choices: Choices, tokenizer: Path) -> dict[int, str]:
    """Question → the text of its first row."""
    decode = Tokenizer.from_file(str(tokenizer)).decode
    return {int(row.options[0]) // 4: decode(row.ids.tolist()) for row in choices.rows}


@pytest.mark.parametrize("by", ["letter", "content"])
def test_a_prompt_is_what_the_benchmarks_show_a_model(by: Any) -> None:
    rows = made_rows(3)
    asked = [
        Question("x", "法学", row["question"], tuple(row[k] for k in LETTERS), LETTERS.index(row["answer"]), "")
        for row in rows
    ]
    assert prompt("法学", asked[2], asked[:2], by) == naive_prompt("法学", rows[2], rows[:2], by)


def test_examples_are_the_first_of_the_subject_and_five_unless_said_otherwise(
    benchmark_set: Path, tokenizer: Path
) -> None:
    shown = [benchmark_set / "dev"]
    for shots, options in ((5, {}), (2, {"shots": 2}), (0, {"shots": 0})):
        choices = opened([benchmark_set / "val"], tokenizer, shown, sequence_length=8192, **options)
        assert choices.shots == shots
        for number, text in decoded(choices, tokenizer).items():
            subject, seed, at = ("accountant", 0, number) if number < 5 else ("law", 1, number - 5)
            row, examples = made_rows(12 if seed else 5, seed)[at], made_rows(5, 10 + seed)[:shots]
            # The last token of the prompt may be joined with the letter.
            assert naive_prompt(subject, row, examples, "letter").startswith(text)
            assert text.endswith("答案")
    assert opened([benchmark_set / "val"], tokenizer).shots == 0
    with pytest.raises(ConfigError, match="expected 0 without examples, else 0 or more, found 3"):
        opened([benchmark_set / "val"], tokenizer, shots=3)
    with pytest.raises(InputError, match="expected 6 of accountant, found 5"):
        opened([benchmark_set / "val"], tokenizer, shown, shots=6)


def test_a_token_across_the_border_takes_the_same_context_from_all_options(tmp_path: Path, tokenizer: Path) -> None:
    """The tokenizer joins ：A, and nothing with B: A is one token after 答案, B are the bytes of ： and itself."""
    rows = made_rows(1)
    choices = opened([write_csv(tmp_path / "x.csv", rows)], tokenizer)
    encode = Tokenizer.from_file(str(tokenizer)).encode
    before = encode(naive_prompt("x", rows[0], [], "letter").removesuffix("：")).ids
    colon, joined = encode("：").ids, encode("：A").ids
    assert len(colon) == len(joined) == 1
    model = Bigram()
    expected = [bigram_score(model.table, before, joined)]
    expected += [bigram_score(model.table, before, [*colon, *encode(letter).ids]) for letter in "BCD"]
    np.testing.assert_allclose(log_likelihoods(model, choices, device="cpu")[0], expected, atol=1e-5)


def test_options_of_one_token_each_cost_one_row(tmp_path: Path) -> None:
    file, plain = write_csv(tmp_path / "x.csv", made_rows(7)), save_tokenizer(tmp_path)
    choices = opened([file], plain)
    assert len(choices.rows) == 7
    assert all(row.options.size == 4 for row in choices.rows)


def test_prompts_lose_their_oldest_examples_until_they_fit(benchmark_set: Path, tokenizer: Path) -> None:
    files, shown, limit = [benchmark_set / "val"], [benchmark_set / "dev"], 600
    encode = Tokenizer.from_file(str(tokenizer)).encode
    choices = opened(files, tokenizer, shown, sequence_length=limit)
    texts, shortened = decoded(choices, tokenizer), 0
    for number, text in texts.items():
        subject, seed, at = ("accountant", 0, number) if number < 5 else ("law", 1, number - 5)
        row, examples = made_rows(12 if seed else 5, seed)[at], made_rows(5, 10 + seed)
        while len(encode(naive_prompt(subject, row, examples, "letter") + "B").ids) - 1 > limit:
            examples = examples[1:]
        shortened += len(examples) < 5
        assert naive_prompt(subject, row, examples, "letter").startswith(text)
        assert len(text) > len(naive_prompt(subject, row, examples, "letter")) - 2
    assert 0 < shortened == choices.shortened
    assert choices.cut == 0
    assert max(len(row.ids) for row in choices.rows) <= limit


def test_a_question_longer_than_the_context_keeps_its_end(benchmark_set: Path, tokenizer: Path) -> None:
    choices = opened([benchmark_set / "val"], tokenizer, [benchmark_set / "dev"], sequence_length=40)
    assert (choices.shortened, choices.cut) == (17, 17)
    assert {len(row.ids) for row in choices.rows} == {39, 40}
    whole = opened([benchmark_set / "val"], tokenizer)
    ends = {tuple(row.options): row.ids[-39:].tolist() for row in whole.rows}
    assert all(row.ids[-39:].tolist() == ends[tuple(row.options)] for row in choices.rows)
    model = Bigram()
    np.testing.assert_allclose(
        log_likelihoods(model, choices, device="cpu"), log_likelihoods(model, whole, device="cpu"), atol=1e-6
    )
    with pytest.raises(ConfigError, match="raise sequence_length"):
        opened([benchmark_set / "val"], tokenizer, sequence_length=2, by="content")


def test_a_tokenizer_of_more_ids_than_the_model_is_refused(benchmark_set: Path, tokenizer: Path) -> None:
    with pytest.raises(ConfigError, match="expected ids below 100"):
        opened([benchmark_set / "val"], tokenizer, vocab_size=100)
    with pytest.raises(InputError, match=r"expected the model's tokenizer\.json"):
        opened([benchmark_set / "val"], benchmark_set / "val")
    (benchmark_set / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected a tokenizer\.json, found"):
        opened([benchmark_set / "val"], benchmark_set)


def test_what_sequences_begin_with_in_common() -> None:
    assert common_prefix([[1, 2, 3], [1, 2], [1, 2, 4, 5]]) == 2
    assert common_prefix([[1], [2]]) == 0
    assert common_prefix([[7, 8], [7, 8]]) == 2


# ---- scores


@pytest.mark.parametrize("by", ["letter", "content"])
def test_batches_of_a_llama_say_what_single_passes_say(benchmark_set: Path, tokenizer: Path, by: Any) -> None:
    model = tiny_llama()
    choices = opened([benchmark_set / "val"], tokenizer, [benchmark_set / "dev"], shots=1, by=by)
    found = log_likelihoods(model, choices, device="cpu", micro_batch=5)
    expected = [
        naive_scores(model, tokenizer, subject, row, made_rows(5, 10 + seed)[:1], by)
        for seed, (subject, count) in enumerate({"accountant": 5, "law": 12}.items())
        for row in made_rows(count, seed)
    ]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_model_that_must_make_all_logits_says_the_same(benchmark_set: Path, tokenizer: Path) -> None:
    choices = opened([benchmark_set / "val"], tokenizer, by="content")
    found = [log_likelihoods(model, choices, device="cpu") for model in (Bigram(), SparingBigram())]
    assert (found[0] == found[1]).all()


def on_ranks(
    models: Sequence[Any], choices: Choices, ranks: Callable[[int], int], world: int
) -> list[NDArray[np.float64]]:
    """What every rank gets; rank n is data-parallel rank ranks(n) of `world`. Fails where not all of them sum."""
    barrier = threading.Barrier(len(models), timeout=30)
    given: list[Any] = [None] * len(models)
    found: list[Any] = [None] * len(models)

    def work(rank: int) -> None:
        def total(*numbers: float) -> list[float]:
            given[rank] = numbers
            barrier.wait()
            return [sum(column) for column in zip(*given, strict=True)]

        found[rank] = log_likelihoods(
            models[rank], choices, device="cpu", micro_batch=4, rank=ranks(rank), world=world, total=total
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_any_number_of_ranks_says_the_same_in_equally_many_passes(benchmark_set: Path, tokenizer: Path) -> None:
    choices = opened([benchmark_set / "val"], tokenizer)
    alone = log_likelihoods(Bigram(), choices, device="cpu", micro_batch=4)
    batches = -(-len(choices.rows) // 4)
    for world in (2, 3, batches + 1):
        models = [Bigram() for _ in range(world)]
        found = on_ranks(models, choices, lambda rank: rank, world)
        assert all((scores == alone).all() for scores in found)
        assert {model.passes for model in models} == {-(-batches // world)}


def test_ranks_that_share_a_model_count_once(benchmark_set: Path, tokenizer: Path) -> None:
    choices = opened([benchmark_set / "val"], tokenizer)
    alone = log_likelihoods(Bigram(), choices, device="cpu", micro_batch=4)
    found = on_ranks([Bigram() for _ in range(4)], choices, lambda rank: rank // 2, 2)
    assert all((scores == alone).all() for scores in found)


def test_a_model_is_left_in_the_mode_it_was_in(benchmark_set: Path, tokenizer: Path) -> None:
    choices, model = opened([benchmark_set / "val"], tokenizer), tiny_llama(attention_dropout=0.5)
    first = log_likelihoods(model.train(), choices, device="cpu")
    assert model.training
    assert (log_likelihoods(model.eval(), choices, device="cpu") == first).all()
    assert not model.training


def test_numbers_that_are_none_are_an_error(benchmark_set: Path, tokenizer: Path) -> None:
    model = copy.deepcopy(Bigram())
    model.table[:] = torch.nan
    with pytest.raises(RunError, match=r"found \[nan, nan, nan, nan\] for question 1, of accountant"):
        log_likelihoods(model, opened([benchmark_set / "val"], tokenizer), device="cpu")


def test_accuracies_are_of_all_questions_and_the_mean_of_subjects(benchmark_set: Path, tokenizer: Path) -> None:
    """accountant: 5 of 5, law: 3 of 12."""
    choices = opened([benchmark_set / "val"], tokenizer)
    scores = np.zeros((17, 4))
    good = [*range(5), 5, 9, 16]
    for number in range(17):
        scores[number, (choices.answers[number] + (number not in good)) % 4] = 1.0
    found = summary(choices, scores)
    assert found["subjects"]["accountant"] == {"questions": 5, "correct": 5, "accuracy": 1.0}
    assert found["subjects"]["law"] == {"questions": 12, "correct": 3, "accuracy": 0.25}
    assert found["accuracy"] == pytest.approx(8 / 17)
    assert found["standard_error"] == pytest.approx((8 / 17 * 9 / 17 / 17) ** 0.5)
    assert found["macro_accuracy"] == pytest.approx(0.625)
    assert found["macro_standard_error"] == pytest.approx((0.25 * 0.75 / 12) ** 0.5 / 2)
    wrong, right = np.log(3 + np.e), np.log(3 + np.e) - 1
    assert found["loss"] == pytest.approx((9 * wrong + 8 * right) / 17)


def test_a_model_that_has_learnt_nothing_is_right_a_quarter_of_the_time(tmp_path: Path, tokenizer: Path) -> None:
    choices = opened([write_csv(tmp_path / "x.csv", made_rows(400))], tokenizer, by="content")
    found = choice_numbers(tiny_llama(), choices, device="cpu", micro_batch=64)
    # Four standard errors.
    assert found["choice_accuracy"] == pytest.approx(0.25, abs=0.087)
    assert found["choice_standard_error"] == pytest.approx(0.0217, abs=0.002)
    assert found["choice_loss"] == pytest.approx(np.log(4), abs=0.5)


# ---- a model's folder


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    model = tiny_llama(eos_token_id=0)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", join="：A")
    return tmp_path / "model"


def test_a_folders_perplexity_is_that_of_its_full_sequences(model_folder: Path, tmp_path: Path) -> None:
    import transformers

    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 107).tolist()
    write_pair(tmp_path / "pair", [[tokens]], "uint16")
    found = evaluate(str(model_folder), data=[str(tmp_path / "pair")], sequence_length=10, device="cpu")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    losses = []
    for start in range(0, 100, 10):
        ids = torch.tensor([tokens[start : start + 11]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0].log_softmax(-1)
        losses.append(-float(logits.gather(1, ids[0, 1:, None]).mean()))
    assert found["pairs"][str(tmp_path / "pair")] == {
        "targets": 100,
        "loss": pytest.approx(np.mean(losses), abs=1e-5),
        "perplexity": pytest.approx(np.exp(np.mean(losses)), rel=1e-5),
    }
    assert found["choices"] is None


def test_the_command_prints_a_table_or_json_of_pairs_and_choices(
    model_folder: Path, benchmark_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair(benchmark_set / "pair", [[list(range(300))]], "uint16")
    arguments = ["train", "--evaluate", str(model_folder), "--data", str(benchmark_set / "pair")]
    arguments += ["--choices", str(benchmark_set / "val"), "--examples", str(benchmark_set / "dev"), "--shots", "2"]
    assert cli.main([*arguments, "--sequence-length", "256", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    choices = opened([benchmark_set / "val"], model_folder, [benchmark_set / "dev"], shots=2, sequence_length=256)
    assert found["choices"] == summary(choices, log_likelihoods(tiny_llama(eos_token_id=0), choices, device="cpu"))
    assert (found["precision"], found["sequence_length"], found["choices"]["shots"]) == ("fp32", 256, 2)
    assert cli.main([*arguments, "--sequence-length", "256"]) == 0
    assert {"accountant", "law", "mean", "perplexity"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "expected --data PREFIX or --choices PATH, found neither"),
        (["--data", "nowhere"], "nowhere"),
        (["--choices", "nowhere"], "nowhere: no such file or folder"),
        (["--data", "pair", "--shots", "2"], "--examples, --shots"),
        (["--data", "pair", "--sequence-length", "4096"], "max_position_embeddings"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(
    model_folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--evaluate", str(model_folder), *flags]) == 2
    assert message in capsys.readouterr().err


def test_flags_of_an_evaluation_need_a_folder_to_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--config", "train.yaml", "--shots", "2"]) == 2
    assert "--shots needs --evaluate MODEL" in capsys.readouterr().err
    assert cli.main(["train", "--evaluate", "nowhere", "--data", "pair"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
