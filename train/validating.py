"""What a run measures now and then without learning from it: the loss on pairs kept apart, and multiple choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from taojin.core.errors import ConfigError
from taojin.train.choices import Choices, choice_numbers
from taojin.train.config import TrainConfig
from taojin.train.data import TokenData
from taojin.train.engine import Process
from taojin.train.losses import mean_loss, perplexity
from taojin.train.parallel import Layout


class Validation:
    """data: pairs for the loss, or None. vocab_size: of the model. Raises ConfigError and InputError for questions that
    cannot be read, or a tokenizer that is missing or has more ids than the model."""

    def __init__(
        self,
        config: TrainConfig,
        data: TokenData | None,
        *,
        vocab_size: int,
        layout: Layout,
        process: Process,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._data = data
        self._layout = layout
        self._process = process
        self._choices: Choices | None = None
        if config.eval_every and config.choices.files:
            if not config.tokenizer and not Path(config.model).is_dir():
                raise ConfigError(
                    "choices: the questions need the model's tokenizer: name its tokenizer.json as tokenizer"
                )
            self._choices = Choices.open(
                config.choices.files,
                config.choices.examples,
                config.choices.shots,
                tokenizer=config.tokenizer or config.model,
                sequence_length=config.sequence_length,
                vocab_size=vocab_size,
                by=config.choices.by,
            )
            if self._choices.cut or self._choices.shortened:
                report(
                    f"choices: of {len(self._choices.answers):,} prompts {self._choices.shortened:,} lost examples "
                    f"and {self._choices.cut:,} their beginning, to fit into {config.sequence_length:,} tokens"
                )

    def due(self, done: int, total: int) -> bool:
        """Whether it is time after so many steps; always after the last."""
        every = self._config.eval_every
        return bool(every) and (done % every == 0 or done == total)

    def numbers(self, engine: Any) -> dict[str, float]:
        """Of the model as it is now. All ranks must call it."""
        found: dict[str, float] = {}
        if self._data is not None:
            loss = mean_loss(engine, self._data, self._config.eval_batches, self._layout, self._process)
            found |= {"validation_loss": loss, "validation_perplexity": perplexity(loss)}
        if self._choices is not None:
            found |= choice_numbers(
                engine,
                self._choices,
                device=self._process.device,
                micro_batch=self._config.micro_batch,
                rank=self._layout.data_rank(self._process.rank),
                world=self._layout.data,
                total=self._process.total,
            )
        return found
