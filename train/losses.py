"""The loss of a micro-batch, and the mean loss over many without learning from them.

A loss is a sum over targets, never a mean: what it is divided by, the targets of the whole global batch, only the
caller knows. Imports torch in its functions only.
"""

import math
from typing import Any

from taojin.train.data import Batch, TokenData
from taojin.train.engine import Process
from taojin.train.feed import read_ahead
from taojin.train.parallel import Layout
from taojin.train.sequence import DIVIDED, Slice, slices

# exp of more is no number.
LARGEST_LOSS = 700.0


def summed_loss(model: Any, batch: Batch, device: str) -> Any:
    """Σ -log p of the targets of a micro-batch, fp32, with its graph; of a slice, of its part. model: from tokens to
    logits."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens = torch.from_numpy(batch.tokens).to(device, non_blocking=True)
    positions = None if batch.positions is None else torch.from_numpy(batch.positions).to(device, non_blocking=True)
    # Positions that begin anew are what transformers takes for a border that attention does not cross.
    divided = {DIVIDED: True} if isinstance(batch, Slice) else {}
    logits = model(input_ids=tokens[:, :-1], position_ids=positions, use_cache=False, **divided).logits
    losses = cross_entropy(
        logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum" if batch.loss_mask is None else "none"
    )
    if batch.loss_mask is None:
        return losses
    return (losses * torch.from_numpy(batch.loss_mask).to(device).flatten()).sum()


def targets_of(batch: Batch) -> int:
    """How many targets of a micro-batch are learnt."""
    return batch.tokens[:, 1:].size if batch.loss_mask is None else int(batch.loss_mask.sum())


def mean_loss(engine: Any, data: TokenData, batches: int, layout: Layout, process: Process) -> float:
    """Of the first global batches of the data, or all if there are fewer; nothing is learnt. All ranks must call it."""
    import torch

    if data.num_steps is not None:
        batches = min(batches, data.num_steps)
    summed = torch.zeros((), dtype=torch.float64, device=process.device)
    targets = 0.0
    engine.eval()
    try:
        with torch.no_grad():
            for part in slices(read_ahead(data, layout, process.rank, 0, batches), layout, process.rank):
                summed += summed_loss(engine, part, process.device).double()
                targets += targets_of(part)
    finally:
        engine.train()
    loss_sum, target_sum = process.total(float(summed), targets)
    return loss_sum / max(target_sum, 1.0)


def perplexity(loss: float) -> float:
    return math.exp(min(loss, LARGEST_LOSS))
