"""text-dedup 0.4: minhash as its README configures it (threshold 0.7, 240 permutations, 5-grams, verified).

Its default drops texts of fewer than five of its tokens before anything else; these count as removed, because they are
absent from its output. One process.
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

import os
import subprocess
import sys
from pathlib import Path

from common import arguments, batches, report

CONFIG = """
[input]
input_type = "local_files"
file_type = "parquet"
[input.read_arguments]
path = "parquet"
data_files = "{data_files}"
split = "train"
cache_dir = "{cache}"
[algorithm]
algorithm_name = "minhash"
text_column = "text"
seed = 42
batch_size = 10000
num_perm = 240
threshold = 0.7
hash_bits = 64
ngram_size = 5
check_false_positive = true
num_proc = 1
[output]
output_dir = "{output}"
clean_cache = false
[debug]
enable_profiling = false
"""


def main() -> None:
    options = arguments(__doc__ or "")
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(
        data_files=options.input.resolve() / "*.parquet", cache=work / "cache", output=work / "output"
    )
    (work / "config.toml").write_text(config, encoding="utf-8")
    environment = {**os.environ, "HF_DATASETS_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "text_dedup.minhash"], cwd=work, check=True, env=environment)
    from datasets import load_from_disk

    kept = set(load_from_disk(str(work / "output"))["id"])
    removed = [name for ids, _ in batches(options.input) for name in ids if name not in kept]
    report(options, removed, None, "threshold .7, 240 permutations, 5-grams, verified, one process")


if __name__ == "__main__":
    main()
