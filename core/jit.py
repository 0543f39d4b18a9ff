"""How kernels are compiled: `@kernel`, numba's njit without the GIL and with a cache on disk that notices every change.

numba names a cached function by its own file alone. A kernel that calls one of another module would go on with that
one's old machine code after an edit or an upgrade, and two kernels could disagree about what a shingle is. So the cache
lies in a folder named by the content of all files that hold kernels.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit

_settings: Any = config  # its names are made at run time
inlined = njit(inline="always")


@cache
def cache_folder() -> str:
    """<core>/__pycache__/kernels-<hash of core/*.py and dedup/*.py>; about 1 ms."""
    core = Path(__file__).parent
    content = hashlib.blake2b(digest_size=8)
    for source in sorted([*core.glob("*.py"), *(core.parent / "dedup").glob("*.py")]):
        content.update(source.read_bytes())
    return str(core / "__pycache__" / f"kernels-{content.hexdigest()}")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first call. Where the folder cannot be written numba falls back to one of the user's.

    numba reads the setting while it decorates; it is put back for everybody else's functions.
    """
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = before or cache_folder()
    try:
        return njit(cache=True, nogil=True)(function)
    finally:
        _settings.CACHE_DIR = before
