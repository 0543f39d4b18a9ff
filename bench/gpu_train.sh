#!/usr/bin/env bash
# One GPU, eight minutes at most: does `taojin train` run there, how fast, and does --plan know its memory?
#
#     bench/gpu_train.sh [FOLDER]              TAOJIN_DRY=1 bench/gpu_train.sh      on a CPU, a toy: only that it works
#
# Trains a fresh Llama of 0.5 billion parameters, bf16, ZeRO-3 on one device, 30 steps of 8 x 4,096 tokens of a made-up
# pair, once for every kind of attention that is installed, with and without activation checkpointing. After the first
# run its last checkpoint is removed and the run resumed from the one before; the dry run ends with that.
# Needs the extra `train` and, for FOLDER (default: a temporary one, removed), 20 GB; no network. PYTHON: the interpreter
# (default: .venv/bin/python, else python3). Out: tokens/s, MFU, peak memory beside the plan's, and PASS or FAIL lines.
# Exit status: 0 all pass, 1 not, 2 nothing could be run.
set -uo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 TQDM_DISABLE=1 PYTHONUNBUFFERED=1 RAY_AUTH_MODE=disabled DS_BUILD_OPS=0

DRY=${TAOJIN_DRY:-0}
LIMIT_SECONDS=480
RUN_SECONDS=150 # of one start: a hang must not take the time of the others
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}

refuse() {
    echo "gpu_train: $1" >&2
    exit 2
}

has() {
    "$PYTHON" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec(sys.argv[1]) is None)' "$1"
}

for needed in taojin torch deepspeed transformers; do
    has $needed || refuse "$PYTHON has no $needed: pip install '.[train]', or name another interpreter in PYTHON"
done
[ "$DRY" = 1 ] || "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    refuse "no CUDA device was found; TAOJIN_DRY=1 tries the script itself on a CPU"

if [ $# -gt 0 ]; then
    FOLDER=$1
    mkdir -p "$FOLDER" || refuse "$FOLDER cannot be made"
    [ -z "$(ls -A "$FOLDER")" ] || refuse "$FOLDER is not empty; name a new folder"
else
    FOLDER=$(mktemp -d)
    trap 'rm -rf "$FOLDER"' EXIT
fi
failed=0

# pair.bin, pair.idx, model.json, train.yaml. Tokens by Zipf's law: their frequencies can be learnt within 30 steps.
prepare() {
    "$PYTHON" - "$FOLDER" "$DRY" <<'PY'
import json, sys
from pathlib import Path

import numpy as np
import yaml

from taojin.core.megatron import write_index

folder, dry = Path(sys.argv[1]).resolve(), sys.argv[2] == "1"
vocabulary, length, steps, batch = (512, 64, 4, 8) if dry else (32_000, 4096, 30, 8)
documents, document = 2 * steps * batch, length
weights = 1 / np.arange(1, vocabulary + 1)
tokens = np.random.default_rng(0).choice(vocabulary, documents * document, p=weights / weights.sum())
(folder / "pair.bin").write_bytes(tokens.astype("<u2").tobytes())
with (folder / "pair.idx").open("wb") as sink:
    write_index(
        sink, np.dtype("<u2"), documents, documents,
        lambda: [np.full(documents, document, np.int32)], lambda: [np.ones(documents, np.int32)],
    )
sizes = (64, 128, 2, 4, 2) if dry else (1536, 4096, 16, 24, 8)
names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
model = {"model_type": "llama", **dict(zip(names, sizes)), "vocab_size": vocabulary, "max_position_embeddings": length}
(folder / "model.json").write_text(json.dumps({**model, "tie_word_embeddings": False}))
run = {
    "model": str(folder / "model.json"), "data": [str(folder / "pair")], "output": str(folder / "run"),
    "sequence_length": length, "steps": steps, "global_batch": batch, "micro_batch": batch // 2,
    "optimizer": {"learning_rate": 0.01 if dry else 3e-4}, "schedule": {"warmup": steps // 10},
    "precision": "fp32" if dry else "bf16", "device": "cpu" if dry else "cuda", "zero": {"stage": 3},
    "save_every": 0, "tracking": {"tensorboard": False},
}
(folder / "train.yaml").write_text(yaml.safe_dump(run))
PY
}

# train NAME SETTING…: a start of the run; the log is shown where it fails.
train() {
    local name=$1 left=$((LIMIT_SECONDS - SECONDS)) status
    shift
    [ $left -lt $RUN_SECONDS ] || left=$RUN_SECONDS
    if [ $left -lt 20 ]; then
        echo "FAIL  $name: not run, the $LIMIT_SECONDS s are over"
        return 1
    fi
    timeout --kill-after=10 $left "$PYTHON" -m taojin.cli train --config "$FOLDER/train.yaml" \
        --set "$@" "output=$FOLDER/$name" --json >"$FOLDER/$name.json" 2>"$FOLDER/$name.log"
    status=$?
    [ $status -eq 0 ] && return
    echo "FAIL  $name: status $status (124: longer than $left s); the end of its log:"
    tail -n 15 "$FOLDER/$name.log" | sed 's/^/      /'
    return 1
}

# judge run NAME, or judge resumed NAME: reads metrics and plan, prints what they say.
judge() {
    "$PYTHON" - "$FOLDER" "$DRY" "$@" <<'PY'
import json, sys
from math import isfinite
from pathlib import Path
from statistics import fmean, median

from taojin.core.storage import Folder
from taojin.train.tracking import read_metrics

GIB = 2**30
folder, dry, kind, name = Path(sys.argv[1]), sys.argv[2] == "1", *sys.argv[3:]
failed = 0


def verdict(passed: bool, words: str) -> None:
    global failed
    failed |= not passed
    print(f"{'PASS' if passed else 'FAIL'}  {name}: {words}")


metrics = read_metrics(Folder(str(folder / name)))
losses = {step: row["loss"] for step, row in metrics.items()}
before = folder / f"{name}.losses.json"
if kind == "resumed":
    first = json.loads((folder / f"{name}.json").read_text())["first_step"]
    was = {int(step): loss for step, loss in json.loads(before.read_text()).items()}
    verdict(first == len(was) // 2, f"resumed from step {first}")
    apart = max(abs(losses[step] - was[step]) if step in losses else float("inf") for step in was if step > first)
    # Kernels that add in any order are not repeatable bit for bit.
    verdict(apart < 0.05, f"the same steps again: losses at most {apart:.2g} apart")
    sys.exit(failed)

before.write_text(json.dumps(losses))
end = max(1, len(losses) // 6)
first, last = fmean(list(losses.values())[:end]), fmean(list(losses.values())[-end:])
verdict(all(map(isfinite, losses.values())) and last < first, f"the loss fell from {first:.3f} to {last:.3f}")
# The first steps compile and allocate.
steady = [row for step, row in metrics.items() if step > len(metrics) // 3]
speed = median(row["tokens_per_second"] for row in steady)
shares = [row["mfu"] for row in steady if "mfu" in row]
share = f"{100 * median(shares):.1f} %" if shares else "unknown"
memory = max((row["memory_bytes"] for row in metrics.values() if "memory_bytes" in row), default=0)
plan = json.loads((folder / f"{name}.plan.json").read_text())["memory"]
memory, planned, limit = (size / GIB for size in (memory, plan["peak"], plan["peak"] + plan["reserved"]))
print(f"      {name}: {speed:,.0f} tokens/s, MFU {share}; peak {memory:.2f} GiB, planned {planned:.2f} GiB")
if not dry:  # on a CPU it is the process that is measured, with all its libraries
    verdict(0 < memory <= limit, f"memory is {memory / planned:.2f} of the plan, which reserves {limit:.2f} GiB")
sys.exit(failed)
PY
}

prepare || refuse "the pair could not be made"
attentions="sdpa" checkpointings="false true" half=15
has flash_attn && attentions="sdpa flash_attention_2"
[ "$DRY" = 1 ] && attentions="sdpa" checkpointings="false" half=2

for attention in $attentions; do
    for checkpointing in $checkpointings; do
        name=$attention-$([ $checkpointing = true ] && echo checkpointed || echo plain)
        settings=("attention=$attention" "activation_checkpointing=$checkpointing")
        [ "$name" = sdpa-plain ] && settings+=("save_every=$half")
        "$PYTHON" -m taojin.cli train --config "$FOLDER/train.yaml" --set "${settings[@]}" --plan --json \
            >"$FOLDER/$name.plan.json" || failed=1
        if train "$name" "${settings[@]}"; then
            judge run "$name" || failed=1
            if [ "$name" = sdpa-plain ]; then
                # Without its numbers too, so that those that are compared are the resumed run's.
                rm -rf "$FOLDER/$name/checkpoints/step-$(printf %08d $((2 * half)))" "$FOLDER/$name/metrics"
                train "$name" "${settings[@]}" && judge resumed "$name" || failed=1
            fi
        else
            failed=1
        fi
        rm -rf "$FOLDER/$name/checkpoints"
    done
done
echo "$([ $failed -eq 0 ] && echo PASS || echo FAIL)  all, in $SECONDS s"
exit $failed
