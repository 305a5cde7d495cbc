from __future__ import annotations

from snippet import run_snippet

PRELUDE = """
import os, sys
from longwatch.host.guardian.kernel import become_subreaper
from longwatch.host.process import reap_orphans

become_subreaper()

def ended():
    '''A child of ours that has ended and that nobody has waited for.'''
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def inherited():
    '''The same, of which we were not the parent.'''
    reader, writer = os.pipe()
    if (first := os.fork()) == 0:
        if (second := os.fork()) == 0:
            os._exit(0)
        os.write(writer, str(second).encode())
        os._exit(0)
    os.waitpid(first, 0)
    second = int(os.read(reader, 100))
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    return second

def is_child(pid):
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
"""


def said(story: str) -> list[str]:
    """The lines that the story prints, in a process of its own."""
    with run_snippet(PRELUDE + story) as snippet:
        code, complaints = snippet.wait()
        assert (0, "") == (code, complaints)
        return snippet._out.read().splitlines()


def test_orphans_that_were_inherited_are_reaped_and_counted() -> None:
    assert ["3", "[False, False, False]", "0"] == said("""
pids = [inherited() for _ in range(3)]
print(reap_orphans(()))
print([is_child(pid) for pid in pids])
print(reap_orphans(()))
""")


def test_those_that_are_known_are_left_to_whoever_waits_for_them() -> None:
    assert ["1", "5", "False"] == said("""
stranger, known = inherited(), ended()
print(reap_orphans({known}))
print(os.waitstatus_to_exitcode(os.waitpid(known, 0)[1]))
print(is_child(stranger))
""")


def test_one_that_is_known_does_not_hide_the_strangers_behind_it() -> None:
    assert ["2", "5"] == said("""
known = ended()
inherited(), inherited()
print(reap_orphans({known}))
print(os.waitstatus_to_exitcode(os.waitpid(known, 0)[1]))
""")


def test_strangers_of_other_threads_are_reaped_too() -> None:
    assert ["1"] == said("""
import threading
known = ended()
thread = threading.Thread(target=ended)
thread.start()
thread.join()
while len(os.listdir("/proc/self/task")) > 1:
    pass  # a thread that is ending has no list of children
print(reap_orphans({known}))
os.waitpid(known, 0)
""")


def test_who_is_alive_is_left_alone() -> None:
    assert ["0", "True"] == said("""
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(reader, 1)
    os._exit(0)
print(reap_orphans(()))
print(is_child(pid))
os.write(writer, b".")
os.waitpid(pid, 0)
""")


def test_without_children_there_is_nothing_to_reap() -> None:
    assert ["0"] == said("print(reap_orphans({os.getpid()}))")
