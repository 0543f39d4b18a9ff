import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `shingle_sets` of dedup/shingles.py calls `fold_symbols` of core/text.py, which numba compiles into it.
SCRIPT = """
import numpy as np, taojin
from taojin.core.fold import load_fold_table
from taojin.core.text import scratch_for
from taojin.dedup.shingles import shingle_sets
data = np.frombuffer(b"one two three four five", np.uint8)
out, starts = np.zeros(100, np.uint64), np.zeros(2, np.int64)
shingle_sets(data, np.array([0, data.size]), *load_fold_table(), 5, scratch_for(data.size), out, starts)
print(taojin.__file__, out[0])
"""


def shingle(checkout: Path) -> str:
    """The one shingle of five words, by the package in this folder and whatever numba has cached beside it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    # Where a cache outside the package is used, it is not this user's.
    environment |= {"HOME": str(checkout / "home"), "XDG_CACHE_HOME": str(checkout / "home" / ".cache")}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    place, value = result.stdout.split()
    assert place.startswith(str(checkout))
    return value


@pytest.mark.usefixtures("compiled")
def test_a_changed_kernel_is_compiled_anew_into_every_kernel_that_calls_it(tmp_path: Path) -> None:
    """numba's cache looks at the file of the calling kernel alone: after an upgrade that changes core/text.py, the old
    folding would live on in dedup/, and documents sketched by one version be compared with shingles of another."""
    for name in ("core", "dedup", "taojin"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    before = shingle(tmp_path)
    assert shingle(tmp_path) == before
    kernel = tmp_path / "core" / "text.py"
    changed = kernel.read_text(encoding="utf-8").replace("0xCBF29CE484222325", "0xCBF29CE484222327")
    assert changed != kernel.read_text(encoding="utf-8")
    kernel.write_text(changed, encoding="utf-8")
    assert shingle(tmp_path) != before
