"""Changes to the texts of documents that stay, made as they are written: questions cut out, personal data masked."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.quality.cutting import cut_array, cut_spans
from taojin.quality.personal import mask_array


class CutQuestions(NamedTuple):
    """`taojin.core.write.Edit`: cut what the scan found of evaluation sets. hits: WORK/hits."""

    hits: Folder

    def __call__(
        self, texts: pa.LargeStringArray, unit: int, first_row: int
    ) -> tuple[pa.LargeStringArray, Counter[str]]:
        with self.hits.open(f"{unit_name(unit)}.arrow") as file:
            hits = pa.ipc.open_file(file).read_all()
            documents = hits.column("document").to_numpy() - first_row
            low, high = np.searchsorted(documents, [0, len(texts)])
            rows = np.arange(low, high)
            present = texts.is_valid().to_numpy(zero_copy_only=False)
            rows = rows[present[documents[rows]]]
            if not len(rows):
                return texts, Counter()
            here = hits.take(pa.array(rows)).set_column(0, hits.schema.field(0), pa.array(documents[rows]))
            cut = len(np.unique(documents[rows]))
            return cut_array(texts, cut_spans(texts, here)), Counter(documents_cut=cut)


class MaskPersonal(NamedTuple):
    """`taojin.core.write.Edit`: put a placeholder for every piece of personal data of these kinds."""

    kinds: tuple[str, ...]

    def __call__(
        self, texts: pa.LargeStringArray, unit: int, first_row: int
    ) -> tuple[pa.LargeStringArray, Counter[str]]:
        masked, counts = mask_array(texts, self.kinds)
        return masked, Counter({f"masked_{kind}": count for kind, count in counts.items() if count})
