"""The export of the last spans when a process ends."""

from __future__ import annotations

import threading

import pytest

opentelemetry_tracer = pytest.importorskip("longwatch.observe.opentelemetry_tracer")


class HangingProvider:
    """Its exporter does not answer; like that of the SDK it does not keep to the timeout."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.has_returned = threading.Event()

    def force_flush(self, _timeout_millis: int) -> None:
        self.release.wait(30)
        self.has_returned.set()


def test_an_exporter_that_hangs_does_not_hold_the_end_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = HangingProvider()
    monkeypatch.setattr(opentelemetry_tracer.trace, "get_tracer_provider", lambda: provider)
    try:
        opentelemetry_tracer.flush_provider(0.0)
        assert not provider.has_returned.is_set()
    finally:
        provider.release.set()
