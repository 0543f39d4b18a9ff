"""rensa 0.5: RMinHashDeduplicator, threshold 0.8, 128 permutations, 16 bands, character 5-gram lists, batches of 2,000.

The documented use (token lists in, keep flags out) with sketches built in batches. It checks candidates by sketch and
writes nothing: the figure is read + 5-grams + sketch + index. One thread (RAYON_NUM_THREADS=1 is set by the bench).
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

from common import Stages, arguments, batches, grams, report
from rensa import RMinHash, RMinHashDeduplicator

options = arguments(__doc__)
bands = options.bands or 16
stages = Stages()
index = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True, num_bands=bands, seed=42)
removed: list[str] = []
for ids, texts in batches(options.input):
    stages.done("read")
    token_sets = [grams(text) for text in texts]
    stages.done("grams")
    sketches = RMinHash.from_token_sets(token_sets, num_perm=128, seed=42)
    stages.done("sketch")
    keep = index.add_pairs(list(zip(ids, sketches, strict=True)))
    removed.extend(name for name, kept in zip(ids, keep, strict=True) if not kept)
    stages.done("index")
report(options, removed, stages, f"RMinHashDeduplicator .8, 128 permutations, {bands} bands, character 5-grams")
