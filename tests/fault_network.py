"""What happens to the network before a server: the same faults for every kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fault_harness import Fault
from loopback import TcpProxy


def network_faults(proxy: TcpProxy) -> list[Fault]:
    return [
        Fault("half-open connections", partial(_blackholed, proxy), seconds=1.0),
        Fault("every connection cut", partial(_cut, proxy), seconds=0.5),
        Fault("connections refused", partial(_refused, proxy), seconds=1.5),
        Fault("network 2 ms slower", partial(_slow, proxy, 0.002), seconds=1.0),
        Fault("network 50 ms slower", partial(_slow, proxy, 0.05), seconds=2.0),
    ]


@contextmanager
def _blackholed(proxy: TcpProxy) -> Iterator[None]:
    """Those that were swallowed stay silent for good; only new ones pass afterwards."""
    proxy.blackhole()
    yield
    proxy.forward()


@contextmanager
def _cut(proxy: TcpProxy) -> Iterator[None]:
    proxy.cut()
    yield


@contextmanager
def _refused(proxy: TcpProxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    yield
    proxy.forward()


@contextmanager
def _slow(proxy: TcpProxy, delay: float) -> Iterator[None]:
    proxy.forward(delay=delay)
    yield
    proxy.forward()
