"""What happens to the network before a server: the same faults for every kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fault_stage import Fault
from tcp_proxy import TcpProxy


def network_faults(proxy: TcpProxy) -> list[Fault]:
    return [
        Fault("half-open connections", partial(_swallowing, proxy), hold=1.0),
        Fault("every connection cut", partial(_cut, proxy), hold=0.5),
        Fault("connections refused", partial(_refusing, proxy), hold=1.5),
        Fault("network 2 ms slower", partial(_slow, proxy, 0.002), hold=1.0),
        Fault("network 50 ms slower", partial(_slow, proxy, 0.05), hold=2.0),
    ]


@contextmanager
def _swallowing(proxy: TcpProxy) -> Iterator[None]:
    """Those that were swallowed stay silent for good; only new ones pass afterwards."""
    proxy.swallow()
    yield
    proxy.pass_on()


@contextmanager
def _cut(proxy: TcpProxy) -> Iterator[None]:
    proxy.cut()
    yield


@contextmanager
def _refusing(proxy: TcpProxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    yield
    proxy.pass_on()


@contextmanager
def _slow(proxy: TcpProxy, delay: float) -> Iterator[None]:
    proxy.pass_on(delay=delay)
    yield
    proxy.pass_on()
