"""Rank 0 of a torchrun and ranks that do not do what they should before the run begins."""

import socket
import threading
import time

import pytest

from moeinspect.errors import EngineError, WorkerLostError
from moeinspect.runtime.processes import joined, joining
from moeinspect.runtime.processes.joined import JoinedProcesses
from moeinspect.runtime.processes.joining import Hello, MainAddress
from moeinspect.runtime.processes.messages import Failed
from moeinspect.runtime.processes.tcp import connect
from moeinspect.runtime.processes.torchrun import TorchrunPlace


@pytest.fixture
def main(monkeypatch):
    """Rank 0 of two, which serves the store itself."""
    monkeypatch.setattr(joining, "LEAVE_TIMEOUT_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with JoinedProcesses(TorchrunPlace(0, 2, "127.0.0.1", port, False, False)) as processes:
        yield processes


def launch(main):
    """Has rank 0 obtain its workers; ends where they are connected."""
    return list(main.launch(["tp-0", "tp-1"], [(0, 1)], lambda index, channels: None))


@pytest.fixture
def rank_1(main):
    """Does in a thread what rank 1 would: connects, says hello, and goes on with `then`."""
    address = MainAddress.find(main._store)

    def start(hello, then=lambda connection: None):
        def work():
            with connect(address.host, address.port, address.key, 10) as connection:
                connection.send(hello)
                then(connection)

        threading.Thread(target=work, daemon=True).start()

    return start


def test_a_rank_of_another_version_is_refused(main, rank_1):
    rank_1(Hello(1, "main", version="0.0"))
    with pytest.raises(EngineError, match=r"rank 1 runs moeinspect 0\.0, rank 0 "):
        launch(main)


def test_a_rank_that_goes_away_is_named(main, rank_1):
    rank_1(Hello(1, "main"))
    with pytest.raises(WorkerLostError, match="rank 1 of torchrun went away before the run began"):
        launch(main)


def test_what_a_rank_could_not_do_is_said(main, rank_1):
    failure = Failed("it could not meet its peers: no route to host", "see that all hosts reach each other")
    rank_1(Hello(1, "main"), lambda connection: (connection.send(failure), time.sleep(5)))
    with pytest.raises(EngineError, match="rank 1 of torchrun failed: it could not meet its peers: no route"):
        launch(main)


def test_ranks_that_do_not_come_are_named(main, monkeypatch):
    monkeypatch.setattr(joined, "JOIN_TIMEOUT_S", 0.1)
    with pytest.raises(EngineError, match=r"of the 2 processes of torchrun these ranks did not come .*: 1"):
        launch(main)
