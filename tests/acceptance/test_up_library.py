"""The supervisor as a library, in a program of somebody else's that has threads and children of
its own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from run_process import TIMEOUT, clean_environment

PROGRAM = '''
import os, signal, subprocess, sys, threading
from pathlib import Path
from longwatch.supervisor import ProgramPlan, Supervisor

own = subprocess.Popen(["sleep", "1000"])
stop = threading.Event()

def work():
    while not stop.is_set():
        subprocess.run(["true"], check=True)

workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers:
    worker.start()

def keep():
    """Started by a thread that ends: what it keeps up must not end with it."""
    supervisor.start()

supervisor = Supervisor(
    [ProgramPlan.of(name, ["sleep", "1000"]) for name in ("a", "b")], state_dir=Path.cwd()
)
keeper = threading.Thread(target=keep)
keeper.start()
keeper.join()
before = {facts["name"]: facts["pid"] for facts in supervisor.start_programs("a", "b")}
os.kill(before["a"], signal.SIGKILL)
callers = [
    threading.Thread(target=act, args=("b",))
    for act in (supervisor.restart_programs, supervisor.status)
    for _ in range(4)
]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
after = {facts["name"]: facts["pid"] for facts in supervisor.start_programs("a", "b")}
assert before["a"] != after["a"] and before["b"] != after["b"]
assert own.poll() is None, "its own child is none of ours"
handlers = {signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)}
assert handlers == {signal.SIG_DFL}, "a library leaves signals alone"
supervisor.stop()
stop.set()
for worker in workers:
    worker.join()
own.kill()
assert -9 == own.wait(), "its own child's end is its own to learn"
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nothing is left")
'''


def test_a_threaded_program_keeps_programs_up_and_keeps_its_own_children_to_itself(
    wheel_python: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [wheel_python, "-W", "error", "-c", PROGRAM],
        check=False,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (0, "nothing is left\n", "") == (done.returncode, done.stdout, done.stderr)
