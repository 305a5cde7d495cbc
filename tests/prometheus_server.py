"""A real Prometheus for tests: scrapes some addresses every second and evaluates rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from loopback import free_port

TIMEOUT = 60.0
SCRAPE_INTERVAL = "500ms"


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """What promtool says; it must find no fault."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        check=False,
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


class PrometheusServer:
    def __init__(self, directory: Path, jobs: Mapping[str, Sequence[str]], rules: Path) -> None:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        config = directory / "prometheus.yml"
        config.write_text(json.dumps(_scrape_config(jobs, rules)), encoding="utf-8")
        promtool("check", "config", config)
        self._log = (directory / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def get(self, path: str) -> Any:
        """The data of an answer of its API; None while it does not answer."""
        try:
            with urlopen(f"{self._url}{path}", timeout=TIMEOUT) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is just starting
                return None
            raise AssertionError(f"{path}: {error.read().decode()}") from None
        except (URLError, ConnectionError):
            return None

    def result(self, expression: str) -> list[Any]:
        """The series of an instant query. AssertionError if Prometheus refuses the expression."""
        data = self.get(f"/api/v1/query?{urlencode({'query': expression})}")
        return [] if data is None else list(data["result"])

    def query(self, expression: str) -> dict[str, float]:
        """The value of each series, by the values of its labels but for those of the target."""
        return {
            ",".join(
                value
                for label, value in sorted(each["metric"].items())
                if label not in {"__name__", "job", "instance"}
            ): float(each["value"][1])
            for each in self.result(expression)
        }

    def scraped_pages(self) -> list[str]:
        """What its targets serve now."""
        urls = [each["scrapeUrl"] for each in self.get("/api/v1/targets")["activeTargets"]]
        pages = []
        for url in urls:
            with urlopen(url, timeout=TIMEOUT) as answer:
                pages.append(answer.read().decode())
        return pages

    def rule_errors(self) -> dict[str, str]:
        """The rules that do not evaluate, each with its error; those not evaluated yet, too."""
        groups = self.get("/api/v1/rules")["groups"]
        return {
            rule["name"]: rule.get("lastError") or rule["health"]
            for group in groups
            for rule in group["rules"]
            if rule["health"] != "ok"
        }


def _scrape_config(jobs: Mapping[str, Sequence[str]], rules: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": list(targets)}]}
            for name, targets in jobs.items()
        ],
    }


@contextmanager
def scraping(
    directory: Path, jobs: Mapping[str, Sequence[str]], rules: Path
) -> Iterator[PrometheusServer]:
    """A Prometheus for these targets by job, ended with the block."""
    server = PrometheusServer(directory, jobs, rules)
    try:
        yield server
    finally:
        server.close()
