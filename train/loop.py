"""The run itself, as every worker runs it: build, resume, step by step, save, stop.

A step is a pure function of the state before it and its number: rows, learning rate and random numbers follow from the
number. So a resumed run repeats what an uninterrupted one does, bit for bit on the same workers; on others up to the
order in which gradients are added.

The loss of a step is the sum over its targets divided by their number in the whole global batch, so that rows with few
targets weigh no more than others, and micro-batch and ranks do not enter. One reduction of a few numbers a step carries
the loss, requests to stop and how saves are coming along. The next micro-batches are read by a thread.

What lies where in RUN is in `run_folder`; what ends a run in `stop`.
"""

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from taojin.core.errors import InputError, RunError, TaojinError
from taojin.core.storage import Folder
from taojin.train.checkpoint import newest
from taojin.train.config import TrainConfig
from taojin.train.data import Batch
from taojin.train.elastic import starts_again
from taojin.train.engine import Process, make_engine, set_learning_rate
from taojin.train.feed import open_data, read_ahead
from taojin.train.gauges import Gauges, passes_row
from taojin.train.losses import perplexity, summed_loss, targets_of
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
from taojin.train.run_folder import refuse_another, settle, what_it_is
from taojin.train.saving import Saver
from taojin.train.schedule import learning_rate, phases
from taojin.train.sequence import divide_attention, slices
from taojin.train.stop import Stop
from taojin.train.tracking import Tracker, last_numbers, require_packages
from taojin.train.validating import Validation
from taojin.train.zero import deepspeed_config

CHECKPOINTS = "checkpoints"
FINISHED = "finished"


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
    numbers: dict[str, float] = field(default_factory=dict)
    """of rank 0: the last validation_loss, and what the run took, as `Gauges.summary` has it"""


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
    Raises ConfigError, InputError, FrozenPlanError before the first step; RunError when the loss is no number, another
    start has taken the run over, or the last checkpoint could not be saved.
    """
    start = process.gather(uuid.uuid4().hex)[0]
    stop = Stop(Folder(config.output), process.rank, start)
    run = _Run(config, process, stop, report if process.rank == 0 else lambda _: None)
    with stop.listening():
        try:
            return run.go(on_step)
        finally:
            run.close()


class _Run:
    def __init__(self, config: TrainConfig, process: Process, stop: Stop, report: Callable[[str], None]) -> None:
        self.config = config
        self.process = process
        self.stop = stop
        self.report = report
        self.folder = Folder(config.output)
        self.layout: Layout = layout(config, process.world)
        values = read_model(config.model)
        if self.layout.model > 1:
            check_model(config, values)
        self.model_config = transformers_config(values, sequence_length=config.sequence_length)
        vocab_size = self.model_config.vocab_size
        self.data, kept_apart = open_data(config, vocab_size, process, report)
        self.validation = Validation(
            config, kept_apart, vocab_size=vocab_size, layout=self.layout, process=self.process, report=report
        )
        self.total = config.steps or self.data.num_steps or config.total_steps()
        # Raises now what would stop the first step.
        phases(config.schedule, self.total)
        what = what_it_is(config, values, self.data.identity(), self.total)
        self._alone(self._own, what)
        checkpoints = self.folder.child(CHECKPOINTS)
        found = process.gather(newest(checkpoints) if process.rank == 0 else None)[0]
        self.first = found.step if found else 0
        self.gauges = Gauges(
            config, process, values, total=self.total, epoch_tokens=self.data.tokens, report=self.report
        )
        self._alone(self._open_books)
        restorer = found and Restorer(
            checkpoints,
            found,
            rank=process.rank,
            world=process.world,
            local_rank=process.local_rank,
            tensor=self.layout.tensor,
            stage=config.zero.stage,
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
            before_commit=stop.require_ownership,
        )
        self.saver.attach(self.engine)
        self.tracker: Tracker | None = None
        self._alone(self._track)
        self._alone(settle, self.folder, config, self.model_config, what)

    def go(self, on_step: Callable[[int, int, dict[str, float]], None]) -> Outcome:
        config, loss, saved_at, reason = self.config, None, self.first, FINISHED
        last: dict[str, float] = {}
        rank = self.process.rank
        batches = slices(read_ahead(self.data, self.layout, rank, self.first, self.total), self.layout, rank)
        for step in range(self.first, self.total):
            numbers = self._step(step, batches)
            done = step + 1
            loss = numbers["loss"]
            validated = self.validation.due(done, self.total)
            if validated:
                numbers |= self.validation.numbers(self.engine)
                last = {name: numbers[name] for name in ("validation_loss",) if name in numbers}
            saving = self.stopping or done == self.total or (config.save_every and done % config.save_every == 0)
            if done % config.log_every == 0 or done == self.total or validated:
                if self.tracker:
                    self.tracker.write(done, numbers | self._seen(done, bool(saving or validated)))
                on_step(done, self.total, numbers)
            if saving:
                self.saver.start(self.engine, done)
                saved_at = done
                if self.tracker:
                    self.tracker.flush()
            if self.stopping:
                reason = next(filter(None, self.process.gather(self.stop.reason)))
                break
        self.saver.wait()
        batches.close()
        if self.tracker and loss is not None:
            # The last save is paid for too.
            self.tracker.write(saved_at, self.gauges.bill())
        lost = self.process.gather(self.saver.lost)[0]
        if lost and not starts_again(reason):
            raise RunError(
                f"the last checkpoint, of step {saved_at:,}, was not saved: {lost}; make room, and run again to go on "
                "from the one before"
            )
        return Outcome(
            steps=saved_at,
            total_steps=self.total,
            first_step=self.first,
            loss=loss,
            saves=self.saver.saved,
            failed_saves=self.saver.failed,
            reason=reason,
            numbers=last | self.gauges.summary(),
        )

    def close(self) -> None:
        if self.tracker:
            self.tracker.close()
        self.engine.destroy()

    def _step(self, step: int, batches: Iterator[Batch]) -> dict[str, float]:
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
            targets = self.process.total(sum(map(targets_of, parts)))[0] / self.layout.tensor
        # DeepSpeed divides by accumulation and averages over the ranks that it takes for data-parallel ones.
        scale = self.layout.accumulation * self.layout.averaged / max(targets, 1.0)
        losses = []
        for micro in range(self.layout.accumulation):
            if micro >= len(parts):
                asked = time.perf_counter()
                parts.append(next(batches))
                waited += time.perf_counter() - asked
            part_loss = summed_loss(self.engine, parts[micro], self.process.device)
            self.engine.backward(part_loss * scale)
            self.engine.step()
            losses.append(part_loss.detach().double())
        # None where DeepSpeed has none: ZeRO-0 in fp32.
        norm = self.engine.get_global_grad_norm()
        loss = self._agree(float(torch.stack(losses).sum()), 0.0 if norm is None else float(norm)) / max(targets, 1.0)
        if self.wild or not math.isfinite(loss):
            self.saver.wait()
            what = "the norm of the gradient" if math.isfinite(loss) else "the loss"
            raise RunError(self._no_number(step, what, [not math.isfinite(float(part)) for part in losses]))
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "learning_rate": rate,
            "gradient_norm": math.nan if norm is None else float(norm),
            "tokens": float((step + 1) * self.config.tokens_per_step),
            "failed_saves": float(self.saver.failed),
            **self.gauges.read(step + 1, time.perf_counter() - began, waited),
        }

    def _agree(self, summed: float, norm: float) -> float:
        """The one reduction of a step: the summed loss of all samples, whether to stop, how the saves come along."""
        if self.process.rank == 0 and self.gauges.over_budget(self.saver.slowest):
            self.stop.ask("budget")
        pending, problems = self.saver.flags()
        # With fp16, DeepSpeed skips such a step and lowers its scale.
        wild = not math.isfinite(norm) and self.config.precision != "fp16"
        total, asked, pending_sum, problem_sum, wild_sum = self.process.total(
            summed, float(self.stop.asked()), pending, problems, float(wild)
        )
        self.stopping, self.wild = asked > 0, wild_sum > 0
        self.saver.settle(int(pending_sum), int(problem_sum))
        # Ranks of a tensor have the same loss, those of a sequence each a part of it.
        return total / self.layout.tensor

    def _make_engine(self, universal: bool) -> Any:
        config = self.config
        values = deepspeed_config(config, self.process.world, self.process.kind, universal)
        if self.layout.sequence > 1:
            divide_attention(
                self.model_config, config.attention, self.layout, separate_documents=config.separate_documents
            )
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
        self.report(f"what DeepSpeed was given: {self.folder.uri}/deepspeed.json")
        return make_engine(model, parameter_groups(model, config.optimizer.weight_decay), values)

    def _seen(self, done: int, passes: bool) -> dict[str, float]:
        """What goes with a row of rank 0 but is not asked for at every step."""
        saver = self.saver
        seen = self.gauges.machine() | self.gauges.saves(saver.saved + saver.failed, saver.slowest, saver.blocked)
        return seen | passes_row(self.data.passes(done)) if passes else seen

    def _open_books(self) -> None:
        self.gauges.resume(self.first, last_numbers(self.folder))

    def _track(self) -> None:
        settings = self.config.model_dump(mode="json")
        self.tracker = Tracker(self.folder, self.config.tracking, self.first, settings, self.report)

    def _own(self, what: dict[str, Any]) -> None:
        require_packages(self.config.tracking)
        refuse_another(self.folder, what)
        self.stop.own()

    def _alone(self, act: Callable[..., None], *arguments: Any) -> None:
        """Rank 0 acts; what it raises of ours, all raise."""
        problem: TaojinError | None = None
        if self.process.rank == 0:
            try:
                act(*arguments)
            except TaojinError as error:
                problem = error
        if problem := self.process.gather(problem)[0]:
            raise problem

    def _no_number(self, step: int, what: str, wrong: list[bool]) -> str:
        """wrong: whether the loss of each of this rank's micro-batches is no number. All ranks must call it."""
        layout = self.layout
        places = [
            (rank, micro)
            for rank, parts in enumerate(self.process.gather(wrong))
            for micro in range(len(parts))
            if parts[micro]
        ]
        rows: tuple[int, ...] = ()
        if places:
            rank, micro = places[0]
            rows = layout.data_rank(rank), layout.data, micro, layout.accumulation
        shown = []
        with contextlib.suppress(InputError, OSError):
            found = self.data.provenance(step, *rows)
            names = dict.fromkeys(
                f"{origin.pair} document {origin.document:,}"
                + (f" ({origin.origin.get('shard')} row {origin.origin.get('row')})" if origin.origin else "")
                for origin in found
            )
            shown = list(names)
        more = f" and {len(shown) - 5:,} more" if len(shown) > 5 else ""
        return (
            f"step {step + 1:,}: {what} is no number; nothing of it was saved; documents of the "
            f"{'micro-batch' if places else 'batch'}: "
            f"{', '.join(shown[:5])}{more}; lower the learning rate, or leave them out, and run again"
        )
