"""An MCP server that sends events as logging notifications. Arguments: port, name of its tool,
path of a file.

Each line that is appended to the file is sent to every subscriber as an event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

PORT, TOOL, FILE = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
warnings.simplefilter("ignore")
server = MCPServer("events")
tasks: set[asyncio.Task[None]] = set()


def read_lines() -> list[str]:
    return FILE.read_text().splitlines()


async def send_lines(session: Any, mode: str) -> None:
    sent = len(read_lines())
    await session.send_log_message("info", "noise", logger="another")
    while True:
        lines = read_lines()
        for line in lines[sent:]:
            data = {"mode": mode, "line": line} if line != "text" else json.dumps({"text": 1})
            await session.send_log_message("warning", data, logger="kubernetes/faults")
        sent = max(sent, len(lines))
        await asyncio.sleep(0.01)


@server.tool(name=TOOL)
async def subscribe(mode: str, context: Context) -> str:
    if mode == "broken":
        raise ValueError("this mode is broken")
    task = asyncio.create_task(send_lines(context.session, mode))
    tasks.add(task)
    return "subscribed"


@server.tool(name="pods_list")
async def pods_list() -> str:
    return "none"


server.run("streamable-http", port=PORT)
