"""The run itself, as every worker runs it: build, resume, step by step, save, stop.

    RUN/run.json          what the result depends on; another config does not continue the run
    RUN/deepspeed.json    what DeepSpeed was given
    RUN/model/            the model's config and the tokenizer, for the export
    RUN/checkpoints/…     see `checkpoint`             RUN/metrics/…, tensorboard/   see `tracking`
    RUN/stop              whoever makes this file asks for a last checkpoint and the end

A step is a pure function of the state before it and its number: rows, learning rate and random numbers follow from the
number. So a resumed run repeats what an uninterrupted one does, bit for bit on the same workers; on others up to the
order in which gradients are added.

The loss of a step is the sum over its targets divided by their number in the whole global batch, so that rows with few
targets weigh no more than others, and micro-batch and ranks do not enter. One reduction of a few numbers a step carries
the loss, requests to stop and how saves are coming along. The next micro-batches are read by a thread.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taojin.core.errors import ConfigError, FrozenPlanError, InputError, RunError
from taojin.core.storage import Folder, first_line
from taojin.train.checkpoint import newest
from taojin.train.config import TrainConfig
from taojin.train.data import Batch, TokenData
from taojin.train.engine import Process, make_engine, set_learning_rate
from taojin.train.model import (
    build_model,
    largest_parameter,
    num_parameters,
    parameter_groups,
    read_model,
    transformers_config,
)
from taojin.train.parallel import Layout, check_model, layout
from taojin.train.restoring import Restorer
from taojin.train.saving import Saver
from taojin.train.schedule import learning_rate, phases
from taojin.train.tracking import Tracker
from taojin.train.zero import deepspeed_config

CHECKPOINTS = "checkpoints"
STOP = "stop"
# A request on an object store takes some 20 ms, and a stop can wait that long.
STOP_SECONDS = 5.0
# Of a model's config: who wrote it, not what it is.
UNIMPORTANT = ("transformers_version", "_name_or_path")
# exp of more is no number.
LARGEST_LOSS = 700.0
# Micro-batches read ahead: more only where reading is as slow as computing.
AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended. steps: done in all; loss: of the last step, None where there was nothing left to do."""

    steps: int
    total_steps: int
    first_step: int
    loss: float | None
    saves: int
    failed_saves: int
    reason: str
    """why it ended: `finished`, or what asked it to stop"""


class Stop:
    """A request to end after the step: a signal, the file RUN/stop, or whoever sets the reason."""

    def __init__(self, folder: Folder, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._looked = 0.0
        self.reason: str | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM, which preemption sends, ends the run in order. Only a process's main thread can listen."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, lambda *_: self.ask("SIGTERM"))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def asked(self) -> bool:
        now = time.monotonic()
        if self.reason is None and self._rank == 0 and now - self._looked > STOP_SECONDS:
            self._looked = now
            with contextlib.suppress(OSError):
                if self._folder.exists(STOP):
                    self.ask("the file stop")
        return self.reason is not None


def train(
    config: TrainConfig,
    process: Process,
    *,
    report: Callable[[str], None] = lambda _: None,
    on_step: Callable[[int, int, dict[str, float]], None] = lambda *_: None,
) -> Outcome:
    """Run, or go on with, the run at config.output. All ranks must call it with the same config.

    report: notes for people, from rank 0. on_step: after every logged step, on every rank, with the steps done, the
    steps of the run, and numbers.
    Raises ConfigError, InputError, FrozenPlanError before the first step; RunError when the loss is no number.
    """
    run = _Run(config, process, report if process.rank == 0 else lambda _: None)
    stop = Stop(run.folder, process.rank)
    with stop.listening():
        try:
            return run.go(stop, on_step)
        finally:
            run.close()


class _Run:
    def __init__(self, config: TrainConfig, process: Process, report: Callable[[str], None]) -> None:
        self.config = config
        self.process = process
        self.report = report
        self.folder = Folder(config.output)
        self.layout: Layout = layout(config, process.world)
        if self.layout.sequence > 1:
            raise ConfigError("parallel.sequence: not built yet for engine deepspeed; use tensor, or set it to 1")
        values = self.model_values = read_model(config.model)
        if self.layout.tensor > 1:
            check_model(config, values)
        self.model_config = transformers_config(values, sequence_length=config.sequence_length)
        self.data, self.validation = open_data(config, self.model_config.vocab_size)
        self.total = config.steps or self.data.num_steps or config.total_steps()
        # Raises now what would stop the first step.
        phases(config.schedule, self.total)
        self._settle_run()
        checkpoints = self.folder.child(CHECKPOINTS)
        found = process.gather(newest(checkpoints) if process.rank == 0 else None)[0]
        self.first = found.step if found else 0
        restorer = found and Restorer(
            checkpoints,
            found,
            rank=process.rank,
            world=process.world,
            local_rank=process.local_rank,
            tensor=self.layout.tensor,
            gather=process.gather,
        )
        self.engine = self._make_engine(restorer is not None and restorer.universal)
        if restorer:
            restorer.load(self.engine)
            report(f"resumed from step {self.first:,}")
        self.saver = Saver(
            checkpoints,
            rank=process.rank,
            devices=process.world,
            tensor=self.layout.tensor,
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            asynchronous=config.asynchronous_save,
            gather=process.gather,
            report=report,
        )
        self.saver.attach(self.engine)
        self.tracker: Tracker | None = None
        if process.rank == 0:
            self.tracker = Tracker(self.folder, config.tracking, self.first, config.model_dump(mode="json"))

    def go(self, stop: Stop, on_step: Callable[[int, int, dict[str, float]], None]) -> Outcome:
        config, loss, saved_at = self.config, None, self.first
        reason = "finished"
        batches = read_ahead(self.data, self.layout, self.process.rank, self.first, self.total)
        for step in range(self.first, self.total):
            numbers = self._step(step, batches, stop)
            done = step + 1
            loss = numbers["loss"]
            if config.eval_every and (done % config.eval_every == 0 or done == self.total):
                numbers |= self._evaluate()
            if done % config.log_every == 0 or done == self.total or "validation_loss" in numbers:
                if self.tracker:
                    self.tracker.write(done, numbers)
                on_step(done, self.total, numbers)
            stopping = self.stopping
            if stopping or done == self.total or (config.save_every and done % config.save_every == 0):
                self.saver.start(self.engine, done)
                saved_at = done
                if self.tracker:
                    self._flush()
            if stopping:
                reason = next(filter(None, self.process.gather(stop.reason)))
                break
        self.saver.wait()
        batches.close()
        done = max(saved_at, self.first)
        return Outcome(
            steps=done,
            total_steps=self.total,
            first_step=self.first,
            loss=loss,
            saves=self.saver.saved,
            failed_saves=self.saver.failed,
            reason=reason,
        )

    def close(self) -> None:
        if self.tracker:
            self.tracker.close()
        self.engine.destroy()

    def _step(self, step: int, batches: Iterator[Batch], stop: Stop) -> dict[str, float]:
        import torch

        began = time.perf_counter()
        # Dropout, where a model has it, follows from the step too.
        torch.manual_seed(
            (self.config.seed + step * self.layout.data + self.layout.data_rank(self.process.rank)) % 2**63
        )
        rate = learning_rate(self.config, self.total, step)
        set_learning_rate(self.engine, rate)
        parts = [next(batches)]
        waited = time.perf_counter() - began
        targets = float(self.config.global_batch * self.config.sequence_length)
        if parts[0].loss_mask is not None:
            parts += [next(batches) for _ in range(self.layout.accumulation - 1)]
            waited = time.perf_counter() - began
            mine = sum(int(part.loss_mask.sum()) for part in parts if part.loss_mask is not None)
            targets = self.process.total(mine)[0] / self.layout.model
        # DeepSpeed divides by accumulation and averages over its data-parallel ranks.
        scale = self.layout.accumulation * self.layout.data / max(targets, 1.0)
        summed = torch.zeros((), dtype=torch.float64, device=self.process.device)
        for micro in range(self.layout.accumulation):
            if micro >= len(parts):
                asked = time.perf_counter()
                parts.append(next(batches))
                waited += time.perf_counter() - asked
            part_loss = summed_loss(self.engine, parts[micro], self.process.device)
            self.engine.backward(part_loss * scale)
            self.engine.step()
            summed += part_loss.detach().double()
        pending, problems = self.saver.flags()
        total_loss, asked_to_stop, pending_sum, problem_sum = self.process.total(
            float(summed), float(stop.asked()), pending, problems
        )
        self.stopping = asked_to_stop > 0
        self.saver.settle(int(pending_sum), int(problem_sum))
        loss = total_loss / self.layout.model / max(targets, 1.0)
        if not math.isfinite(loss):
            self.saver.wait()
            raise RunError(self._no_number(step, loss))
        seconds = time.perf_counter() - began
        norm = self.engine.get_global_grad_norm()
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, LARGEST_LOSS)),
            "learning_rate": rate,
            "gradient_norm": float(norm) if norm is not None else math.nan,
            "tokens": float((step + 1) * self.config.tokens_per_step),
            "tokens_per_second": self.config.tokens_per_step / seconds,
            "step_seconds": seconds,
            "data_wait_seconds": waited,
            "failed_saves": float(self.saver.failed),
        }

    def _evaluate(self) -> dict[str, float]:
        import torch

        assert self.validation is not None
        batches = self.config.eval_batches
        if self.validation.num_steps is not None:
            batches = min(batches, self.validation.num_steps)
        summed = torch.zeros((), dtype=torch.float64, device=self.process.device)
        targets = 0.0
        self.engine.eval()
        try:
            with torch.no_grad():
                for part in read_ahead(self.validation, self.layout, self.process.rank, 0, batches):
                    summed += summed_loss(self.engine, part, self.process.device).double()
                    targets += float(part.tokens[:, 1:].size if part.loss_mask is None else part.loss_mask.sum())
        finally:
            self.engine.train()
        loss_sum, target_sum = self.process.total(float(summed), targets)
        loss = loss_sum / max(target_sum, 1.0)
        return {"validation_loss": loss, "validation_perplexity": math.exp(min(loss, LARGEST_LOSS))}

    def _make_engine(self, universal: bool) -> Any:
        config = self.config
        values = deepspeed_config(config, self.process.world, self.process.kind, universal)
        # Tensor parallelism divides the matrices first, which takes them whole.
        divided = values if config.zero.stage == 3 and self.layout.tensor == 1 else None
        model = build_model(
            config.model,
            self.model_config,
            seed=config.seed,
            precision=config.precision,
            attention=config.attention,
            activation_checkpointing=config.activation_checkpointing,
            zero=divided,
        )
        values = deepspeed_config(config, self.process.world, self.process.kind, universal, largest_parameter(model))
        if self.process.rank == 0:
            self.folder.write_json("deepspeed.json", values)
        self.report(f"{num_parameters(model):,} parameters; {self.layout.row()}")
        return make_engine(model, parameter_groups(model, config.optimizer.weight_decay), values)

    def _settle_run(self) -> None:
        """The run belongs to what its first start was told. Raises FrozenPlanError with the difference."""
        ours = {
            "config": self.config.frozen_part(),
            "model": {key: value for key, value in self.model_values.items() if key not in UNIMPORTANT},
            "data": self.data.identity(),
            "steps": self.total,
        }
        problem = None
        if self.process.rank == 0:
            if self.folder.exists("run.json"):
                theirs = self.folder.read_json("run.json")
                problem = "; ".join(differences(theirs, ours)) or None
            else:
                keep_model(self.folder, self.config, self.model_config)
                self.folder.write_json("run.json", ours)
        problem = self.process.gather(problem)[0]
        if problem:
            raise FrozenPlanError(
                f"{self.folder.uri} holds a run of another configuration: {problem}; use another output, or the same "
                "configuration"
            )

    def _no_number(self, step: int, loss: float) -> str:
        layout = self.layout
        shown = []
        with contextlib.suppress(InputError, OSError):
            found = self.data.provenance(step, layout.data_rank(self.process.rank), layout.data)
            names = dict.fromkeys(
                f"{origin.pair} document {origin.document:,}"
                + (f" ({origin.origin.get('shard')} row {origin.origin.get('row')})" if origin.origin else "")
                for origin in found
            )
            shown = list(names)
        more = f" and {len(shown) - 5:,} more" if len(shown) > 5 else ""
        return (
            f"step {step + 1:,}: the loss is {loss}; nothing of it was saved; documents of the batch: "
            f"{', '.join(shown[:5])}{more}; lower the learning rate, or leave them out, and run again"
        )

    def _flush(self) -> None:
        assert self.tracker
        try:
            self.tracker.flush()
        except OSError as error:
            self.report(f"numbers were not written: {first_line(error)}")


def open_data(config: TrainConfig, vocab_size: int) -> tuple[TokenData, TokenData | None]:
    """What to learn and what to validate on. Raises ConfigError, InputError."""
    pairs, validation = config.pairs()
    share = config.validation_share
    shared: dict[str, Any] = {
        "sequence_length": config.sequence_length,
        "global_batch": config.global_batch,
        "seed": config.seed,
        "separate_documents": config.separate_documents,
        "loss_mask": config.loss_mask,
        "vocab_size": vocab_size,
    }
    data = TokenData(pairs, epochs=config.epochs, part=(0.0, 1.0 - share), **shared)
    if not config.eval_every:
        return data, None
    if share:
        return data, TokenData(pairs, part=(1.0 - share, 1.0), **shared)
    return data, TokenData(validation, **shared)


def read_ahead(data: TokenData, layout: Layout, rank: int, first: int, last: int) -> Generator[Batch, None, None]:
    """The micro-batches of a rank in steps first … last - 1, in order, read by a thread meanwhile."""

    def numbers() -> Iterator[tuple[int, int]]:
        for step in range(first, last):
            for micro in range(layout.accumulation):
                yield step, micro

    def read(step: int, micro: int) -> Batch:
        return data.batch(step, layout.data_rank(rank), layout.data, micro, layout.accumulation)

    with ThreadPoolExecutor(1, "read-ahead") as pool:
        waiting: list[Future[Batch]] = []
        for step, micro in numbers():
            waiting.append(pool.submit(read, step, micro))
            if len(waiting) > AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def summed_loss(model: Any, batch: Batch, device: str) -> Any:
    """Σ -log p of the targets of a micro-batch, fp32, with its graph. model: from tokens to logits."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens = torch.from_numpy(batch.tokens).to(device, non_blocking=True)
    positions = None if batch.positions is None else torch.from_numpy(batch.positions).to(device, non_blocking=True)
    # Positions that begin anew are what transformers takes for a border that attention does not cross.
    logits = model(input_ids=tokens[:, :-1], position_ids=positions, use_cache=False).logits
    losses = cross_entropy(
        logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum" if batch.loss_mask is None else "none"
    )
    if batch.loss_mask is None:
        return losses
    return (losses * torch.from_numpy(batch.loss_mask).to(device).flatten()).sum()


def keep_model(folder: Folder, config: TrainConfig, model_config: Any) -> None:
    """The model's config, and the tokenizer's files where there are any, at RUN/model."""
    model = folder.child("model")
    with model.create("config.json") as sink:
        sink.write(model_config.to_json_string().encode())
    source = Path(config.tokenizer or config.model)
    files = [source] if source.is_file() and config.tokenizer else []
    if source.is_dir():
        names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
                 "generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt")  # fmt: skip
        files = [source / name for name in names if (source / name).is_file()]
    for path in files:
        with model.create(path.name) as sink:
            sink.write(path.read_bytes())


def differences(theirs: Any, ours: Any, where: str = "") -> list[str]:
    """`key: X then, Y now` for every leaf of two JSON-like values that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for key in sorted({*theirs, *ours}):
            found += differences(theirs.get(key), ours.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if theirs == ours else [f"{where}: {theirs!r} then, {ours!r} now"]
