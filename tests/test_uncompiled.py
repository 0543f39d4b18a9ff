import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "name",
    [
        *("text", "shingles", "sketch", "bands", "pairs", "clusters", "survivors"),
        *("characters", "layout_signals", "words", "repetition", "repair", "personal", "contamination"),
        *("classifier", "sensitive", "language", "fasttext_model", "sentences_cut", "train_data"),
    ],
)
def test_the_kernels_say_the_same_without_compilation(name: str) -> None:
    """The module's tests in a process where numba compiles nothing: bounds and types are NumPy's own there."""
    folder = Path(__file__).parent
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "-W", "ignore:overflow encountered:RuntimeWarning", str(folder / f"test_{name}.py"),
    ]  # fmt: skip
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run(
        command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
