"""datasketch 2.0: MinHashLSH(threshold 0.8, 128 permutations), character 5-grams, query then insert. One thread.

Removes a document when the index answers its query. No verification, no writing: the figure is read + sketch + index.
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

from common import Stages, arguments, batches, grams, report
from datasketch import MinHash, MinHashLSH

options = arguments(__doc__)
stages = Stages()
lsh = MinHashLSH(threshold=0.8, num_perm=128)
removed: list[str] = []
for ids, texts in batches(options.input):
    stages.done("read")
    for name, text in zip(ids, texts, strict=True):
        sketch = MinHash(num_perm=128)
        sketch.update_batch([gram.encode() for gram in set(grams(text))])
        stages.done("sketch")
        if lsh.query(sketch):
            removed.append(name)
        else:
            lsh.insert(name, sketch)
        stages.done("index")
report(options, removed, stages, f"MinHashLSH .8 → {lsh.b}×{lsh.r}, 128 permutations, character 5-grams")
