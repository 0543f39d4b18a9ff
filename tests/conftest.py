import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from taojin.core.fold import FoldTable, load_fold_table
from tests import naive

# Kernels compile on their first call and CI machines stall: no deadline. The same examples on every run.
settings.register_profile(
    "taojin", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("uncompiled", settings.get_profile("taojin"), max_examples=15)
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
settings.load_profile("uncompiled" if UNCOMPILED else "taojin")


@pytest.fixture
def compiled() -> None:
    """For tests that take minutes where numba compiles nothing."""
    if UNCOMPILED:
        pytest.skip("too slow under NUMBA_DISABLE_JIT=1")


@pytest.fixture(scope="session")
def fold_table() -> FoldTable:
    return load_fold_table()


@pytest.fixture(scope="session")
def naive_fold(fold_table: FoldTable) -> Callable[[bytes], naive.Folded]:
    table, expansions = fold_table.table.tolist(), fold_table.expansions.tolist()
    return lambda data: naive.fold(data, table, expansions)


@pytest.fixture(scope="session")
def dirty_texts() -> Path:
    """The folder of dirty text files beside the checkout; they are not part of the repository."""
    folder = Path(__file__).parents[2] / "shared" / "corpus" / "dirty" / "text"
    if not folder.is_dir():
        pytest.skip(f"no dirty texts at {folder}")
    return folder
