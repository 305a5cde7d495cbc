"""A process that finds or starts the one execution of a graph: `flow_singleton_process.py URL`.

It prints `ready`, waits for a line, and prints the id of the execution.
"""

from __future__ import annotations

import subprocess
import sys

from longwatch.flow import Flow, Graph, compute, input  # noqa: A004 - the contract's word


def shared_graph(version: str = "1") -> Graph:
    """number → double."""
    return Graph(
        "shared",
        version=version,
        nodes=[input("number"), compute("double", ["number"], lambda number: 2 * number)],
    )


def start_processes(url: str, count: int) -> list[subprocess.Popen[str]]:
    """Start so many processes, each of which waits for `ids`."""
    return [
        subprocess.Popen(
            [sys.executable, __file__, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]


def ids(processes: list[subprocess.Popen[str]], *, timeout: float) -> list[str]:
    """Let all processes find or start the execution at the same time; the id that each has."""
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=timeout)[0].strip() for process in processes]


def main() -> None:
    with Flow(sys.argv[1], [shared_graph()]) as flow:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(flow.find_or_start("shared", number=21).id)


if __name__ == "__main__":
    main()
