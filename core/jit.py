"""How kernels are compiled: `@kernel`, numba's njit without the GIL and with a cache on disk that notices every change.

numba names a cached function by its own file alone. A kernel that calls one of another module would go on with that
one's old machine code after an edit or an upgrade, and two kernels could disagree about what a shingle is. So the cache
of a module lies in a folder named by its content and that of every module of ours that it imports.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit

_settings: Any = config  # its names are made at run time
_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(r"^\s*(?:from|import) taojin\.([\w.]+)", re.MULTILINE)
inlined = njit(inline="always")


@cache
def cache_folder(module: str) -> str:
    """<core>/__pycache__/kernels-<hash>, for the kernels of taojin.<module>, as in "core.text"; about 1 ms."""
    content = hashlib.blake2b(digest_size=8)
    for source in sorted(_sources(module)):
        content.update(source.encode())
    return str(Path(__file__).parent / "__pycache__" / f"kernels-{content.hexdigest()}")


def _sources(module: str) -> set[str]:
    """The text of a module's file and of all modules of ours it imports, directly or through others."""
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
        if name not in seen and path.is_file():
            seen[name] = path.read_text(encoding="utf-8")
            waiting += _IMPORT.findall(seen[name])
    return set(seen.values())


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first call. Where the folder cannot be written numba falls back to one of the user's.

    numba reads the setting while it decorates; it is put back for everybody else's functions.
    """
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = before or cache_folder(function.__module__.removeprefix("taojin."))
    try:
        return njit(cache=True, nogil=True)(function)
    finally:
        _settings.CACHE_DIR = before
