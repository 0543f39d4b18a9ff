"""CPU seconds and peak memory of a command with everything it starts: `python -m bench.cpu -- COMMAND…`.

getrusage of the parent misses Ray's workers (raylet ignores SIGCHLD, so nobody ever waits for them) by 3–5×. Here every
descendant is sampled in /proc about ten times a second, orphans are adopted (PR_SET_CHILD_SUBREAPER) and reaped with
their rusage, and each process enters the sum once, with the best figure known for it: its own sampled seconds, plus
what its parent's rusage knows of waited-for children beyond the samples (`_Tree.cpu_seconds`). Nothing counts twice;
what is missed is the last ≤ 0.1 s of a process that nobody waits for. Peak memory is VmHWM (shared pages included) of
the largest single process, not a sum.
Linux only. It does not limit anything, and stops only processes that the command started and left behind.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36
_LINGER_SECONDS = 15.0  # Ray's daemons need some seconds to notice that their driver has ended


@dataclass(kw_only=True)
class Usage:
    """What one command cost. `cpu_seconds` = user + system of all its processes; `peak_mb` is in 10^6 bytes."""

    exit_status: int
    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    peak_process: str
    num_processes: int
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    largest: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class _Process:
    pid: int
    parent: int
    start: str
    name: str
    own: float = 0.0
    waited: float = 0.0  # the children it waited for, and theirs
    total: float = 0.0  # own + waited as rusage told it, once we reaped it
    peak_kb: int = 0
    alive: bool = True
    ignores_children: bool = False  # SIGCHLD ignored: the kernel reaps for it, and their rusage goes nowhere

    @property
    def best_waited(self) -> float:
        return max(self.waited, self.total - self.own)


class _Tree:
    """Every process seen below this one, by (pid, start time)."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.self_pid = os.getpid()
        self.seen: dict[tuple[int, str], _Process] = {}
        self.current: dict[int, _Process] = {}

    def sample(self) -> None:
        stats: dict[int, list[str]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue  # gone since the listing
                head, _, tail = text.rpartition(")")
                stats[int(entry)] = [head.partition("(")[2], *tail.split()]
        found = {pid for pid in stats if self._descends(pid, stats)}
        for pid, process in list(self.current.items()):
            if pid not in found:
                process.alive = False
                del self.current[pid]
        for pid in found:
            self._update(pid, stats[pid])

    def _descends(self, pid: int, stats: dict[int, list[str]]) -> bool:
        while pid in stats and pid != self.self_pid:
            pid = int(stats[pid][2])
        return pid == self.self_pid and bool(pid)

    def _update(self, pid: int, stat: list[str]) -> None:
        if pid == self.self_pid:
            return
        # stat[1:] is fields 3… of proc(5): state, ppid, …, utime (14), stime, cutime, cstime, …, starttime (22)
        start = stat[20]
        process = self.seen.get((pid, start))
        if process is None:
            process = _Process(pid=pid, parent=int(stat[2]), start=start, name=stat[0])
            self.seen[pid, start] = process
        self.current[pid] = process
        process.parent = int(stat[2])
        process.name = stat[0]
        process.own = max(process.own, (int(stat[12]) + int(stat[13])) * _TICK)
        process.waited = max(process.waited, (int(stat[14]) + int(stat[15])) * _TICK)
        try:
            for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    process.peak_kb = max(process.peak_kb, int(line.split()[1]))
                elif line.startswith("SigIgn:"):
                    process.ignores_children = bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
                    break
        except OSError:
            return  # it ended while we looked

    def reap(self) -> int | None:
        """Collect ended children of ours; the root's wait status once it is among them."""
        status_of_root = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return status_of_root
            if pid == 0:
                return status_of_root
            process = self.current.pop(pid, None)
            if process is None:
                process = _Process(pid=pid, parent=self.self_pid, start="reaped", name="?")
                self.seen[pid, f"reaped {time.monotonic_ns()}"] = process
            process.alive = False
            process.parent = self.self_pid
            process.total = usage.ru_utime + usage.ru_stime
            if pid == self.root:
                status_of_root = status

    def cpu_seconds(self) -> float:
        """Σ over all processes of own + what the samples of its waited-for children missed.

        That part is max(0, waited(p) − Σ sampled(dead children of p)), where sampled(c) is what of c would be inside
        its parent's rusage: own(c) plus its waited-for children, unless c ignored them.
        """
        children: dict[int, list[_Process]] = {}
        for process in self.seen.values():
            children.setdefault(process.parent, []).append(process)
        total = 0.0
        done: set[int] = set()

        def visit(process: _Process) -> float:
            """Add `process` and all below it to the total; returns what its parent's rusage may hold of it."""
            nonlocal total
            if id(process) in done:  # a recycled pid: its children hang below its first owner
                return 0.0
            done.add(id(process))
            dead = 0.0
            for child in children.get(process.pid, ()):
                inside = visit(child)
                dead += 0.0 if child.alive else inside
            total += process.own
            if process.ignores_children:
                total += process.best_waited
                return process.own + process.best_waited
            total += max(0.0, process.best_waited - dead)
            return process.own + max(process.best_waited, dead)

        for process in children.get(self.self_pid, ()):
            visit(process)
        return total


def adopt_orphans() -> None:
    """Make this process the parent of every daemon that its descendants leave behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def measure(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float = 3600.0,
    interval_seconds: float = 0.1,
) -> Usage:
    """Run `command` to its end and until its last descendant is gone. Start no other children meanwhile."""
    adopt_orphans()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        child = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        tree = _Tree(child.pid)
        status: int | None = None
        ended = 0.0
        timed_out = False
        asked = False
        while True:
            tree.sample()
            reaped = tree.reap()
            now = time.monotonic()
            if reaped is not None:
                status, ended = reaped, now
            if status is not None and not tree.current:
                break
            if status is None and now - begin > timeout_seconds and not timed_out:
                timed_out = True
                _signal_all(tree, signal.SIGKILL)
            if status is not None and now - ended > _LINGER_SECONDS:
                _signal_all(tree, signal.SIGKILL if asked else signal.SIGTERM)
                asked, ended_again = True, now
                ended = ended_again
            time.sleep(interval_seconds)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = (ended if not asked else now) - begin
        texts = []
        for handle in (out, err):
            handle.seek(0)
            texts.append(handle.read().decode("utf-8", errors="replace"))
    processes = sorted(tree.seen.values(), key=lambda p: -p.peak_kb)
    largest = processes[0] if processes else None
    return Usage(
        exit_status=child.returncode,
        cpu_seconds=tree.cpu_seconds(),
        wall_seconds=wall,
        peak_mb=largest.peak_kb * 1024 / 1e6 if largest else 0.0,
        peak_process=largest.name if largest else "",
        num_processes=len(processes),
        timed_out=timed_out,
        stdout=texts[0],
        stderr=texts[1],
        largest=[f"{p.name} {p.peak_kb * 1024 / 1e6:.0f} MB {max(p.own, p.total):.2f} s" for p in processes[:6]],
    )


def _signal_all(tree: _Tree, number: signal.Signals) -> None:
    for pid in list(tree.current):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU seconds and peak memory of a command and all it starts")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    command = parser.parse_args().command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("bench.cpu: expected a command after --", file=sys.stderr)
        return 2
    usage = measure(command)
    sys.stdout.write(usage.stdout)
    sys.stderr.write(usage.stderr)
    figures = {name: value for name, value in asdict(usage).items() if name not in ("stdout", "stderr")}
    print(json.dumps(figures), file=sys.stderr)
    return usage.exit_status


if __name__ == "__main__":
    raise SystemExit(main())
