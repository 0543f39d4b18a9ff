"""Sequences that neighbouring workers divide: Ulysses (Jacobs et al. 2023), with DeepSpeed's exchange of heads.

Each of S workers takes L / S positions of the same rows through everything but attention. There they exchange: each
gets all positions of 1 / S of the heads, and gives back the results. Activations and logits take 1 / S of the memory;
a layer costs four all-to-alls. Loss and gradients are sums of the workers' parts.

In: batches of whole rows. Out: batches of a worker's positions, whose last target is the next worker's first input; and
attention that joins them. Masks are made anew where attention is: those of transformers know a worker's positions only.
With sdpa, separated documents or a sliding window take L² bytes a row; flash attention takes none. Rows that were not
divided, as multiple choice has them, go through attention as always.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np

from taojin.train.data import Batch
from taojin.train.parallel import Layout

# The argument of a forward pass by which attention knows that others hold the rest of the rows.
DIVIDED = "divided_sequence"


class Slice(Batch):
    """Some positions of rows: tokens int64[rows, L / S + 1], the rest int64 or bool[rows, L / S]. Positions are never
    None: they say where in the row, or in a document of it, an input stands."""


def slice_of(batch: Batch, part: int, parts: int) -> Slice:
    """A copy of part number `part` of a batch, of so many equal ones."""
    rows, length = batch.tokens.shape[0], (batch.tokens.shape[1] - 1) // parts
    begin, end = part * length, (part + 1) * length
    positions = batch.positions
    if positions is None:
        positions = np.broadcast_to(np.arange(length * parts), (rows, length * parts))
    return Slice(
        # One more: the last target is the next part's first input.
        tokens=np.ascontiguousarray(batch.tokens[:, begin : end + 1]),
        loss_mask=None if batch.loss_mask is None else np.ascontiguousarray(batch.loss_mask[:, begin:end]),
        positions=np.ascontiguousarray(positions[:, begin:end]),
    )


def slices(batches: Generator[Batch, None, None], layout: Layout, rank: int) -> Generator[Batch, None, None]:
    """A worker's part of each batch; the batches themselves where sequences are not divided."""
    with contextlib.closing(batches):
        for batch in batches:
            yield batch if layout.sequence == 1 else slice_of(batch, rank % layout.sequence, layout.sequence)


def divide_attention(config: Any, attention: str, layout: Layout, *, separate_documents: bool) -> None:
    """Replace transformers' attention of this name, for slices, by one that exchanges. Once in a process, which all
    ranks must call, before the first forward pass. config: of the model.

    DeepSpeed's engine is not told: with its mpu, version 0.19.8 averages gradients over all ranks or over those of
    different rows, by the stage of ZeRO and the size of a bucket. Without, every rank is a data-parallel one to it,
    checkpoints are as of so many of them, and the loop scales the loss.
    """
    import deepspeed.comm as dist
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    whole: Any = ALL_ATTENTION_FUNCTIONS[attention]
    # A group is made by all ranks, also those that are not in it.
    starts = range(0, layout.world, layout.sequence)
    groups = [dist.new_group(list(range(start, start + layout.sequence))) for start in starts]

    def masked(module: Any, query: Any, key: Any, value: Any, _: None, **rest: Any) -> Any:
        mask = None
        if attention == "sdpa":
            positions = rest["position_ids"] if separate_documents else None
            window = rest.get("sliding_window")
            mask = whole_mask(query.shape[2], positions, window, query.device)
        return whole(module, query, key, value, mask, **rest)

    exchanging = UlyssesSPAttentionHF(
        attn=masked,
        batch_size=layout.micro_batch,
        attn_head_count=config.num_attention_heads,
        attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        kv_head_count=config.num_key_value_heads,
        num_hidden_layers=config.num_hidden_layers,
        process_group=groups[dist.get_rank() // layout.sequence],
        seq_length_is_variable=True,
    )

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> Any:
        if not rest.pop(DIVIDED, False):
            return whole(module, query, key, value, mask, **rest)
        repeated = module.num_key_value_groups
        try:
            return exchanging(module, query, key, value, None, **rest)
        finally:
            # Where key-value heads are repeated, DeepSpeed leaves its own number there.
            module.num_key_value_groups = repeated

    ALL_ATTENTION_FUNCTIONS[attention] = attend


def whole_mask(length: int, positions: Any, window: int | None, device: Any = None) -> Any:
    """bool[rows or 1, 1, L, L], what a query (third axis) may see; None where it is all that came before.

    positions: int64[rows, L], 0 where a document begins; None: documents are not separated. window: how many tokens
    back, itself among them; None: all.
    """
    import torch

    if window is not None and window >= length:
        window = None
    if positions is None and window is None:
        return None
    places = torch.arange(length, device=device)
    back = places[:, None] - places[None, :]
    seen = (back >= 0)[None]
    if window is not None:
        seen = seen & (back < window)
    if positions is not None:
        documents = (positions == 0).cumsum(dim=1)
        seen = seen & (documents[:, :, None] == documents[:, None, :])
    return seen[:, None]
