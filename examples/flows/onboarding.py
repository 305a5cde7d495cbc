"""Onboarding: a welcome mail, reminders until the profile is complete, then the archive.

`python onboarding.py` runs six weeks of it in a second, on a fake clock.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import chdir, closing
from typing import Any

from longwatch.flow import Execution, Flow, FlowContext, Graph, not_, or_, when
from longwatch.testing import run_graph

DAY = 86_400.0


def is_complete(profile: dict[str, Any]) -> bool:
    return bool(profile.get("name") and profile.get("team"))


COMPLETE = when("profile", is_complete)

graph = Graph("onboarding", version="1", retention_days=90)
graph.input("email")
graph.input("profile")


@graph.compute(after=["email"])
def welcome(email: str, context: FlowContext) -> str:
    return send(email, "Welcome", key=f"{context.execution}/welcome")


graph.tick_once("two_days_later", after=["welcome", not_(COMPLETE)], delay=2 * DAY)
graph.tick_recurring("each_week", after=["two_days_later", not_(COMPLETE)], every=7 * DAY)
graph.tick_once("given_up", after=["welcome", not_(COMPLETE)], delay=28 * DAY)


@graph.compute(after=["email", "two_days_later"])
def first_reminder(email: str, two_days_later: float, context: FlowContext) -> str:
    return send(email, "Your profile is empty", key=f"{context.execution}/first/{two_days_later}")


@graph.compute(after=["email", "each_week"])
def weekly_reminder(email: str, each_week: float, context: FlowContext) -> str:
    return send(email, "Still no profile", key=f"{context.execution}/weekly/{each_week}")


@graph.compute(after=["email", COMPLETE])
def thanks(email: str, context: FlowContext) -> str:
    return send(email, "Your profile is complete", key=f"{context.execution}/thanks")


graph.archive("archived", after=or_("thanks", "given_up"))

flow = Flow("sqlite:///onboarding.db", graphs=[graph])


# --- the outbox ---


def send(email: str, subject: str, *, key: str) -> str:
    """Put a mail into the outbox, once for each key: a function of a node may run twice."""
    with closing(sqlite3.connect("mails.db")) as mails, mails:
        mails.execute("CREATE TABLE IF NOT EXISTS mails (key PRIMARY KEY, email, subject)")
        mails.execute(
            "INSERT INTO mails VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, email, subject)
        )
    return subject


def sent_to(email: str) -> list[str]:
    with closing(sqlite3.connect("mails.db")) as mails:
        query = "SELECT subject FROM mails WHERE email = ? ORDER BY rowid"
        return [subject for (subject,) in mails.execute(query, (email,))]


# --- six weeks in a second ---


def report(day: int, name: str, execution: Execution) -> None:
    state = "archived" if "archived" in execution.values() else "waiting"
    print(f"day {day}: {name} is {state}")
    print("\n".join(f"    {subject}" for subject in sent_to(f"{name}@example.org")))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder), run_graph(graph) as run:
        ada, bob = (run.start(email=f"{name}@example.org") for name in ("ada", "bob"))
        run.crash_at("computed", node="weekly_reminder")  # kill a worker that has just sent a mail
        run.advance(10 * DAY)
        report(10, "ada", ada)
        print(f"    {ada.explain().describe('each_week')}")

        ada.set(profile={"name": "Ada", "team": "engines"})
        run.advance(32 * DAY)
        report(42, "ada", ada)
        report(42, "bob", bob)
        mails = [*sent_to("ada@example.org"), *sent_to("bob@example.org")]
        calls, workers = run.runs["weekly_reminder"], len(run.crashes)
        sent = mails.count("Still no profile")
        print(f"{calls} calls sent {sent} weekly reminders: {workers} worker died after its mail")


if __name__ == "__main__":
    main()
