"""A run in this process: it learns, and comes back from whatever ended it as if nothing had."""

import errno
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taojin.core.errors import ConfigError, FrozenPlanError, InputError, OutputError, RunError
from taojin.core.storage import Folder
from taojin.train import loop
from taojin.train.config import TrainConfig
from taojin.train.data import Batch
from taojin.train.engine import Process, start_process
from taojin.train.export import export
from taojin.train.feed import open_data
from taojin.train.loop import Outcome, train
from taojin.train.losses import summed_loss
from taojin.train.model import transformers_config
from taojin.train.tracking import read_metrics
from tests.test_train_choices import made_rows, save_tokenizer, write_csv
from tests.train_runs import TINY_LLAMA, countable_pair, run_values

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")


@pytest.fixture(scope="module")
def process() -> Process:
    import torch

    started = start_process("cpu")
    # More threads than free cores spin at the expense of whatever else runs.
    torch.set_num_threads(1)
    return started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@dataclass
class Done:
    outcome: Outcome
    losses: dict[int, float]
    output: Path


def run(process: Process, values: dict[str, Any], on_step: Any = None, notes: list[str] | None = None) -> Done:
    losses: dict[int, float] = {}

    def each(step: int, _: int, numbers: dict[str, float]) -> None:
        losses[step] = numbers["loss"]
        if on_step:
            on_step(step)

    report = (lambda _: None) if notes is None else notes.append
    outcome = train(TrainConfig(**values), process, report=report, on_step=each)
    return Done(outcome, losses, Path(values["output"]))


@pytest.fixture(scope="module")
def reference(process: Process, folder: Path) -> Done:
    return run(process, run_values(folder, "reference"))


def copied(reference: Done, name: str, newest: int) -> Path:
    """The run as it was right after the checkpoint of this step."""
    output = reference.output.with_name(name)
    shutil.copytree(reference.output, output)
    for step in (4, 8, 12):
        if step > newest:
            shutil.rmtree(output / f"checkpoints/step-{step:08d}")
    return output


def test_the_loss_falls(reference: Done) -> None:
    losses = [reference.losses[step] for step in range(1, 13)]
    assert losses[0] == pytest.approx(np.log(512), abs=0.2)
    assert losses[-1] < losses[0] - 0.5


def test_a_run_leaves_what_its_page_says(reference: Done) -> None:
    assert (reference.outcome.steps, reference.outcome.saves, reference.outcome.reason) == (12, 3, "finished")
    assert (reference.output / "checkpoints/latest").read_text() == "step-00000012\n"
    assert json.loads((reference.output / "deepspeed.json").read_text())["zero_optimization"]["stage"] == 3
    numbers = read_metrics(Folder(str(reference.output)))
    assert {step: row["loss"] for step, row in numbers.items()} == reference.losses
    assert numbers[12]["tokens"] == 12 * 8 * 32


def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(
    process: Process, folder: Path, reference: Done
) -> None:
    output = copied(reference, "resumed", 8)
    # Half-written: it is not even looked at.
    (output / "checkpoints/step-00000008/manifest.json").unlink()
    resumed = run(process, run_values(folder, "resumed"))
    assert resumed.outcome.first_step == 4
    assert resumed.losses == {step: reference.losses[step] for step in range(5, 13)}
    assert read_metrics(Folder(str(output)))[12]["loss"] == reference.losses[12]


def test_a_finished_run_has_nothing_left_to_do(process: Process, folder: Path, reference: Done) -> None:
    again = run(process, run_values(folder, "reference"))
    assert (again.outcome.steps, again.outcome.loss, again.losses) == (12, None, {})


def test_sigterm_saves_and_the_next_start_goes_on(process: Process, folder: Path, reference: Done) -> None:
    values = run_values(folder, "stopped")
    stopped = run(process, values, lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 5 else None)
    assert stopped.outcome.reason == "SIGTERM"
    assert stopped.outcome.steps == 6
    going_on = run(process, values)
    assert going_on.outcome.first_step == 6
    assert {**stopped.losses, **going_on.losses} == reference.losses


def test_a_file_named_stop_ends_the_run(process: Process, folder: Path) -> None:
    output = folder / "halted"
    output.mkdir()
    (output / "stop").touch()
    assert run(process, run_values(folder, "halted")).outcome.steps == 1


def test_missing_parts_of_a_checkpoint_are_named(process: Process, folder: Path, reference: Done) -> None:
    output = copied(reference, "torn", 8)
    (output / "checkpoints/step-00000008/zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(InputError, match=r"zero_pp_rank_0_mp_rank_00_optim_states\.pt.*resume from step 4"):
        run(process, run_values(folder, "torn"))


def test_another_configuration_does_not_continue_a_run(process: Process, folder: Path, reference: Done) -> None:
    with pytest.raises(FrozenPlanError, match=r"config\.sequence_length: 32 then, 16 now"):
        run(process, run_values(folder, "reference", sequence_length=16))


def test_a_start_that_failed_before_the_first_step_binds_nobody(process: Process, folder: Path) -> None:
    conflict = {"zero_optimization": {"stage": 1}}
    with pytest.raises(ConfigError, match=r"zero_optimization\.stage is 1 there"):
        run(process, run_values(folder, "unbound", steps=2, deepspeed=conflict))
    assert run(process, run_values(folder, "unbound", steps=1)).outcome.steps == 1


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    process: Process, folder: Path, reference: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Folder.create
    left = 1

    @contextmanager
    def full(self: Folder, name: str) -> Iterator[Any]:
        nonlocal left
        with create(self, name) as sink:
            yield sink
            if name.endswith("optim_states.pt") and left:
                left -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Folder, "create", full)
    notes: list[str] = []
    done = run(process, run_values(folder, "full"), notes=notes)
    assert (done.outcome.saves, done.outcome.failed_saves) == (2, 1)
    assert done.losses == reference.losses
    assert sorted(path.name for path in (done.output / "checkpoints").iterdir()) == [
        "latest",
        "step-00000008",
        "step-00000012",
    ]
    assert any("step 4" in note and "No space left" in note for note in notes)


def test_a_last_checkpoint_that_is_not_saved_is_no_success(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Folder.create

    @contextmanager
    def full(self: Folder, name: str) -> Iterator[Any]:
        with create(self, name) as sink:
            yield sink
            if name.endswith("optim_states.pt") and "step-00000004" in self.uri:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    values = run_values(folder, "last", steps=4, save_every=2)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "create", full)
        with pytest.raises(RunError, match=r"the last checkpoint, of step 4, was not saved: No space left"):
            run(process, values)
    assert run(process, values).outcome.first_step == 2


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_documents(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def spoilt(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        # Two micro-batches a step: the sixth.
        return summed_loss(*arguments) * (float("nan") if calls == 12 else 1.0)

    monkeypatch.setattr(loop, "summed_loss", spoilt)
    values = run_values(folder, "wild")
    with pytest.raises(RunError, match=r"step 6: the loss is no number.*of the micro-batch: .*pair document") as caught:
        run(process, values)
    assert "\n" not in str(caught.value)
    # The second micro-batch of the sixth step, and no other.
    data, _ = open_data(TrainConfig(**values), 512)
    expected = {f"document {origin.document:,}" for origin in data.provenance(5, micro=1, micros=2)}
    assert set(re.findall(r"document [\d,]*\d", str(caught.value))) <= expected
    assert (folder / "wild/checkpoints/latest").read_text() == "step-00000004\n"


def test_a_gradient_that_is_no_number_stops_the_run_before_it_is_saved(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root at zero: its value is a number, its slope is not."""
    calls = 0

    def steep(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        found = summed_loss(*arguments)
        return found + (found * 0).sqrt() if calls == 16 else found

    monkeypatch.setattr(loop, "summed_loss", steep)
    with pytest.raises(RunError, match=r"step 8: the norm of the gradient is no number.*of the batch: .*pair document"):
        run(process, run_values(folder, "steep"))
    assert (folder / "steep/checkpoints/latest").read_text() == "step-00000004\n"


def test_the_loss_is_the_mean_over_the_targets_of_the_whole_batch(process: Process, folder: Path) -> None:
    """Rows have different numbers of targets here; how they are cut into micro-batches must not matter."""
    common = {"separate_documents": True, "steps": 3, "save_every": 0}
    whole = run(process, run_values(folder, "whole", micro_batch=8, **common))
    cut = run(process, run_values(folder, "cut", micro_batch=1, **common))
    assert cut.losses == pytest.approx(whole.losses, abs=1e-5)


def test_a_padding_token_and_tied_matrices_are_no_obstacle(process: Process, folder: Path) -> None:
    """transformers sets the row of a padding token to zero as it makes a model, which ZeRO-3 has divided by then."""
    run_values(folder, "padded")
    model = folder / "padded.json"
    model.write_text(json.dumps({**TINY_LLAMA, "pad_token_id": 0, "tie_word_embeddings": True}))
    common = {"model": str(model), "steps": 3}
    divided = run(process, run_values(folder, "padded", **common))
    plain = run(process, run_values(folder, "padded-plain", zero={"stage": 1}, **common))
    assert divided.losses == pytest.approx(plain.losses, abs=1e-5)
    output = folder / "padded-model"
    export(str(divided.output), str(output))
    import transformers

    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(output)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_zero_0_comes_back_and_is_exported(process: Process, folder: Path, reference: Done) -> None:
    import torch
    import transformers

    values = run_values(folder, "undivided", zero={"stage": 0}, steps=12)
    whole = run(process, values)
    assert whole.losses == pytest.approx(reference.losses, abs=1e-4)
    shutil.rmtree(whole.output / "checkpoints/step-00000012")
    assert run(process, values).losses == {step: whole.losses[step] for step in range(9, 13)}
    output = folder / "undivided-model"
    export(str(whole.output), str(output), step=8)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    data, _ = open_data(TrainConfig(**values), 512)
    with torch.no_grad():
        loss = float(summed_loss(model, data.batch(8), "cpu")) / (8 * 32)
    assert loss == pytest.approx(whole.losses[9], abs=1e-5)


def test_zero_divides_without_changing_a_step(process: Process, folder: Path, reference: Done) -> None:
    plain = run(process, run_values(folder, "plain", zero={"stage": 1}, steps=12))
    assert plain.losses == pytest.approx(reference.losses, abs=1e-4)


def test_validation_shows_and_changes_nothing(process: Process, folder: Path, reference: Done) -> None:
    other = str(countable_pair(folder / "other", seed=1))
    done = run(process, run_values(folder, "validated", eval_every=6, validation=[other], eval_batches=2))
    assert done.losses == reference.losses
    numbers = read_metrics(Folder(str(done.output)))
    assert [step for step in numbers if "validation_loss" in numbers[step]] == [6, 12]
    assert numbers[12]["validation_loss"] == pytest.approx(numbers[12]["loss"], abs=0.3)
    assert numbers[12]["validation_loss"] < numbers[6]["validation_loss"]


def test_multiple_choice_is_answered_at_validations_and_changes_nothing(
    process: Process, folder: Path, reference: Done
) -> None:
    rows = made_rows(12)
    (folder / "questions").mkdir()
    write_csv(folder / "questions/law_val.csv", rows)
    (folder / "words").mkdir()
    choices = {"files": [str(folder / "questions")]}
    done = run(
        process,
        run_values(folder, "asked", eval_every=6, choices=choices, tokenizer=str(save_tokenizer(folder / "words"))),
    )
    assert done.losses == reference.losses
    numbers = read_metrics(Folder(str(done.output)))
    assert [step for step in numbers if "choice_accuracy" in numbers[step]] == [6, 12]
    assert 0 <= numbers[12]["choice_accuracy"] <= 1
    assert "validation_loss" not in numbers[12]


def test_what_is_exported_has_the_loss_that_the_next_step_had(folder: Path, reference: Done) -> None:
    import torch
    import transformers

    output = folder / "exported"
    assert export(str(reference.output), str(output), step=8, shard_bytes=100_000).step == 8
    assert len(list(output.glob("*.safetensors"))) > 1
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    data, _ = open_data(TrainConfig(**run_values(folder, "reference")), 512)
    with torch.no_grad():
        loss = float(summed_loss(model, data.batch(8), "cpu")) / (8 * 32)
    assert loss == pytest.approx(reference.losses[9], abs=1e-5)
    assert model.config.architectures == ["LlamaForCausalLM"]


def test_an_export_can_be_trained_further(process: Process, folder: Path, reference: Done) -> None:
    model = folder / "again"
    export(str(reference.output), str(model), step=8)
    tuned = run(process, run_values(folder, "tuned", model=str(model), steps=1))
    assert tuned.losses[1] < reference.losses[1] - 0.5


def test_exports_refuse_what_is_not_there_and_what_is(folder: Path, reference: Done) -> None:
    with pytest.raises(InputError, match=r"step-00000007/manifest.json.*found latest, step-00000004"):
        export(str(reference.output), str(folder / "none"), step=7)
    with pytest.raises(OutputError, match=r"found \d+ entries"):
        export(str(reference.output), str(reference.output))


def test_attention_does_not_cross_separated_documents() -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers_config(TINY_LLAMA, sequence_length=32)
    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="sdpa")
    tokens = np.random.default_rng(0).integers(0, 500, (2, 33))
    positions = np.tile(np.r_[np.arange(12), np.arange(20)], (2, 1))
    second = np.tile(np.arange(32) >= 12, (2, 1))
    other = tokens.copy()
    other[:, :12] = 7
    losses = [float(summed_loss(model, Batch(rows, second, positions), "cpu").detach()) for rows in (tokens, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    crossing = [float(summed_loss(model, Batch(rows, second, None), "cpu").detach()) for rows in (tokens, other)]
    assert abs(crossing[0] - crossing[1]) > 1e-2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "nowhere.json"}, "model: nowhere.json: No such file"),
        ({"sequence_length": 256}, "max_position_embeddings 128"),
        ({"data": ["nowhere"]}, "nowhere"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    process: Process, folder: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        run(process, {**run_values(folder, "refused"), **values})
    assert not (folder / "refused").exists()
