"""A port that several processes of one service share, and no other service."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from unittest.mock import Mock

import pytest

from headwater.api.http.server import AddressInUseError, Shared, bind
from headwater.cli.config import ServiceConfig
from headwater.cli.workers import raise_if_in_use

HOST = "127.0.0.1"
keep = partial(bind, HOST, shared=Shared.KEPT)
listen = partial(bind, HOST, shared=Shared.LISTENING)


def end_a_connection(server: socket.socket) -> None:
    """Ended by the server, its port stays in TIME_WAIT for a minute."""
    with socket.create_connection(server.getsockname()) as client:
        server.settimeout(60)
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""


@pytest.mark.parametrize("listened", [partial(bind, HOST), listen])
def test_bind_right_after_a_service_with_connections(listened: Callable[[int], socket.socket]) -> None:
    with listened(0) as server:
        port = server.getsockname()[1]
        end_a_connection(server)
    with keep(port), listen(port) as process:
        end_a_connection(process)


def test_bind_refuses_the_port_of_another_service() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(keep(0)).getsockname()[1]
        for _ in range(2):
            with pytest.raises(AddressInUseError, match=f"can't listen on port {port}"):
                bind(HOST, port)
            stack.enter_context(listen(port))  # a process of ours


@pytest.mark.parametrize(
    ("host", "reason"),
    [("no-such-host.invalid", "Name or service not known|Temporary failure"), ("192.0.2.1", "assign")],
)
def test_bind_to_a_foreign_host(host: str, reason: str) -> None:
    with pytest.raises(AddressInUseError, match=reason) as caught:
        bind(host, 0)
    assert "correct the host" in caught.value.fix


def test_port_configured_twice() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    config = Mock(ServiceConfig, host="0.0.0.0", port=port, metrics_host=HOST, prometheus_port=port)
    config.api.admin_port = None
    with pytest.raises(AddressInUseError, match=r"telemetry\.prometheus_port"):
        raise_if_in_use(config)
