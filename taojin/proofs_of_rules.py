"""Proofs of rules: what was measured, judged once more, gives the reasons that were written down.

Cost: the signals that the rules read, once.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from taojin.core.sidecars import Corpus
from taojin.core.status import EMPTY
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.proofs import BrokenError
from taojin.quality.judging import JudgeContext, judge_again, read_columns
from taojin.report import number


def prove_rules(corpus: Corpus, decide: Folder, manifest: dict[str, Any]) -> tuple[bool, str]:
    """Every document's first failing rule is that of its signals; what fails goes for it, unless nothing is to go."""
    context = JudgeContext(corpus.config, corpus.view.folder, decide)
    names = corpus.config.reasons
    remove = manifest["config"].get("remove", True)
    failing = 0
    for unit in range(len(corpus.plan.units)):
        name = f"{unit_name(unit)}.arrow"
        where = decide.child(f"rules/{name}").uri
        judgement, _ = judge_again(context, unit)
        with decide.child("rules").open(name) as file:
            rule = pa.ipc.open_file(file).get_batch(0).column("rule").to_numpy().copy()
        wrong = rule != judgement.first
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BrokenError(where, f"row {row} is not what its signals say ({int(wrong.sum()):,} such rows)")
        failing += int((rule >= 0).sum())
        decisions = read_columns(decide.child("decisions"), name, ["keep", "reason"])
        reason = decisions.column("reason").to_pylist()
        status = read_columns(corpus.view.folder.child("scan"), name, ["status"]).column("status").to_numpy()
        for row in np.flatnonzero((rule >= 0) & (status < EMPTY) & remove).tolist():
            if reason[row] != names[rule[row]]:
                raise BrokenError(where, f"row {row} fails {names[rule[row]]}, and yet its decision says {reason[row]}")
    what = "go for it" if remove else "were annotated"
    return True, f"{number(len(names), 'rule')} judged again: {number(failing, 'document')} fail one and {what}"
