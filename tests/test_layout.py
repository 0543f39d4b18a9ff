"""The rules of DESIGN.md's layout that keep the house easy to live in."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs import ROOT

STAGES = ("dedup", "quality", "tokenize", "train")
FLOORS = ("core", *STAGES)
# Ray moves control and nothing else: only here.
RAY_MODULES = {"core/tasks.py", "train/elastic.py", "train/launch.py", "train/megatron_workers.py"}
MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")) + sorted(
    (ROOT / "taojin").glob("*.py")
)
HEAVY = ("numpy", "pyarrow", "numba", "ray", "tyro", "pydantic", "torch", "xxhash", "rich")


def names(path: Path) -> list[str]:
    return [path.relative_to(ROOT).as_posix()]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, in full: `from taojin.core import x` is taojin.core.x too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write taojin.…"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def belongs(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("floor", FLOORS)
def test_each_floor_is_a_link_in_the_package(floor: str) -> None:
    link = ROOT / "taojin" / floor
    assert link.is_symlink()
    assert link.readlink() == Path("..") / floor
    assert (ROOT / floor).is_dir()
    assert not (ROOT / floor).is_symlink()


@pytest.mark.parametrize("floor", FLOORS)
def test_no_floor_holds_an_init_file(floor: str) -> None:
    """A top-level tokenize/__init__.py would shadow the standard library's tokenize."""
    assert not list((ROOT / floor).rglob("__init__.py"))


@pytest.mark.parametrize("module", ["tokenize", "train"])
def test_a_floor_shadows_no_module_at_the_root(module: str) -> None:
    found = python(f"import importlib.util; print(getattr(importlib.util.find_spec('{module}'), 'origin', None))")
    assert not found.startswith(str(ROOT))


def test_tokenize_at_the_root_is_the_standard_librarys() -> None:
    assert python("import tokenize; print(tokenize.TokenInfo.__name__, tokenize.__file__)").startswith("TokenInfo ")


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_ray_appears_only_where_control_moves(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() not in RAY_MODULES and path.parent != ROOT / "taojin":
        assert not [module for module in imports(path) if belongs(module, "ray")]


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_imports_run_downwards(path: Path) -> None:
    floor = path.relative_to(ROOT).parts[0]
    if floor == "taojin" or path.name == "run.py":
        return
    below = ("taojin.core",) if floor == "core" else ("taojin.core", f"taojin.{floor}")
    ours = [module for module in imports(path) if belongs(module, "taojin") and module != "taojin"]
    assert not [module for module in ours if not any(belongs(module, package) for package in below)]


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_imports_name_the_package(path: Path) -> None:
    """`import dedup` would be a second copy of taojin.dedup."""
    assert not [module for module in imports(path) if module.split(".")[0] in ("core", "dedup", "quality", "train")]


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/run.py")), ids=names)
def test_a_script_for_ray_submit_imports_only_the_roof(path: Path) -> None:
    if path.parent.name in STAGES:
        assert {module for module in imports(path) if belongs(module, "taojin")} == {"taojin.cli", "taojin.cli.main"}


@pytest.mark.parametrize(
    "code",
    [
        "import taojin",
        "from taojin.cli import main; main(['--help'])",
        "from taojin.cli import main; main(['--version'])",
        "from taojin.cli import main; main(['nonsense'])",
    ],
    ids=["import", "help", "version", "a wrong command"],
)
def test_nothing_heavy_is_imported_before_there_is_work(code: str) -> None:
    found = python(f"import sys\n{code}\nprint('|', *[name for name in {HEAVY} if name in sys.modules])")
    assert found.split("|")[-1].split() == []


def test_one_module_is_one_module() -> None:
    """The links are found under taojin.… alone, whatever the working directory."""
    code = "import sys, taojin.pipeline; print(*[n for n in sys.modules if n.split('.')[0] in ('core', 'dedup')])"
    assert python(code) == ""
