"""datatrove 0.10: its four MinHash stages, 14×8, 64 bits, word 5-grams (Chinese: spaCy with jieba), Parquet in and out.

LocalPipelineExecutor with one worker, so every stage runs in this process. The stages remove on a band's hit, chained
through components; the removed documents are written as well (the exclusion writer), to learn their ids.
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

import pyarrow.parquet as pq
from common import Stages, arguments, report
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.hashing import HashConfig

LANGUAGE = "cmn_Hani"


def main() -> None:
    options = arguments(__doc__ or "")
    work = options.work
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(precision=64))

    def reader() -> ParquetReader:
        return ParquetReader(str(options.input), glob_pattern="*.parquet")

    def writer(name: str) -> ParquetWriter:
        return ParquetWriter(str(work / name), compression="zstd")

    pipelines = {
        "signatures": [reader(), MinhashDedupSignature(str(work / "signatures"), config=config, language=LANGUAGE)],
        "buckets": [MinhashDedupBuckets(str(work / "signatures"), str(work / "buckets"), config=config)],
        "cluster": [MinhashDedupCluster(str(work / "buckets"), str(work / "remove"), config=config)],
        "filter": [reader(), MinhashDedupFilter(str(work / "remove"), writer("removed")), writer("kept")],
    }
    stages = Stages()
    for name, pipeline in pipelines.items():
        tasks = config.num_buckets if name == "buckets" else 1
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(work / "logs" / name)).run()
        stages.done(name)
    removed: list[str] = []
    for shard in (work / "removed").glob("*.parquet"):
        removed.extend(pq.read_table(shard, columns=["id"])["id"].to_pylist())
    report(options, removed, stages, f"14×8, 64 bits, word 5-grams, {LANGUAGE}, one worker")


if __name__ == "__main__":
    main()
