"""What the loop feeds its model: the pairs, opened as the config says, and micro-batches that a thread reads ahead.

Pairs of an object store are fetched first (`fetching`). With `eod: auto` the documents of a pair must end with the
token that `taojin tokenize` noted, whether it wrote it or not, else with one of the model's. Conversations that it
appended nothing to, and masked pairs of others, end as their template has it, and are not looked at.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from taojin.train.config import TrainConfig
from taojin.train.data import Batch, TokenData
from taojin.train.engine import Process
from taojin.train.fetching import local_pairs
from taojin.train.model import read_model
from taojin.train.parallel import Layout
from taojin.train.recorded import recorded

# Micro-batches read ahead: more only where reading is as slow as computing.
AHEAD = 2


def open_data(
    config: TrainConfig, vocab_size: int, process: Process | None = None, report: Callable[[str], None] = lambda _: None
) -> tuple[TokenData, TokenData | None]:
    """What to learn and what to validate on. All ranks must call it; None is the only one. Raises ConfigError,
    InputError, StorageError."""
    pairs, validation = config.pairs()
    share = config.validation_share
    used = [prefix for prefix, _ in pairs] + [prefix for prefix, _ in validation if config.eval_every]
    shared: dict[str, Any] = {
        "sequence_length": config.sequence_length,
        "global_batch": config.global_batch,
        "seed": config.seed,
        "separate_documents": config.separate_documents,
        "loss_mask": config.loss_mask,
        "vocab_size": vocab_size,
        "local": local_pairs(
            used,
            config.cache,
            masked=config.loss_mask,
            local_rank=process.local_rank if process else 0,
            gather=process.gather if process else lambda value: [value],
            report=report,
        ),
        "ends": _ends(config, used, report),
    }
    data = TokenData(pairs, epochs=config.epochs, part=(0.0, 1.0 - share), **shared)
    if not config.eval_every:
        return data, None
    if share:
        return data, TokenData(pairs, part=(1.0 - share, 1.0), **shared)
    return data, TokenData(validation, **shared) if validation else None


def _ends(config: TrainConfig, prefixes: list[str], report: Callable[[str], None]) -> dict[str, list[int]]:
    """Prefix → the tokens that its documents must end with; without those that are not looked at."""
    if config.eod == "none":
        return {}
    if isinstance(config.eod, int):
        return {prefix: [config.eod] for prefix in prefixes}
    # Of the file: a default of transformers is nobody's choice.
    eos = read_model(config.model).get("eos_token_id")
    models = [eos] if isinstance(eos, int) else list(eos or [])
    ends: dict[str, list[int]] = {}
    unknown = []
    for prefix in prefixes:
        known = recorded(prefix)
        if (known and known.ends_by_template) or (config.loss_mask and not known):
            continue
        ends[prefix] = [known.eod] if known and known.eod is not None else models
        if not ends[prefix]:
            unknown.append(prefix)
    if unknown:
        report(
            f"{unknown[0]}{f' and {len(unknown) - 1:,} more pairs' if len(unknown) > 1 else ''}: whether documents end "
            "with an end-of-document token was not looked at, as nobody names one; eod in the config would"
        )
    return ends


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
