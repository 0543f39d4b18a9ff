"""What the loop feeds its model: the pairs, opened as the config says, and micro-batches that a thread reads ahead."""

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from taojin.train.config import TrainConfig
from taojin.train.data import Batch, TokenData
from taojin.train.parallel import Layout

# Micro-batches read ahead: more only where reading is as slow as computing.
AHEAD = 2


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
    return data, TokenData(validation, **shared) if validation else None


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
