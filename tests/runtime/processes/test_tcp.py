"""Only who knows the key gets a connection; who does not, or says nothing, keeps nobody waiting for long."""

import socket
import threading
import time
from multiprocessing import AuthenticationError

import pytest

from moeinspect.runtime.processes import tcp
from moeinspect.runtime.processes.tcp import TcpListener, connect, hosts_of

KEY = b"k" * 32


@pytest.fixture(params=["127.0.0.1", ""], ids=["loopback", "everywhere"])
def listener(request):
    listener = TcpListener(request.param, KEY)
    yield listener
    listener.close()


def in_thread(work, *args):
    """Runs `work` beside the test; its result, or what it raised, is put into the list."""
    result = []

    def run():
        try:
            result.append(work(*args))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def accept_beside(listener, seconds=10):
    return in_thread(listener.accept, time.monotonic() + seconds)


def test_messages_go_both_ways_and_both_know_the_addresses(listener):
    thread, accepted = accept_beside(listener)
    ours = connect("127.0.0.1", listener.port, KEY, 10)
    thread.join()
    (theirs,) = accepted
    ours.send({"a": 1})
    theirs.send([2])
    assert (theirs.recv(), ours.recv()) == ({"a": 1}, [2])
    assert hosts_of(ours) == hosts_of(theirs) == ("127.0.0.1", "127.0.0.1")


def test_a_connection_may_be_silent_for_longer_than_a_proof_takes(listener, monkeypatch):
    monkeypatch.setattr(tcp, "PROOF_S", 1)
    thread, accepted = accept_beside(listener)
    ours = connect("127.0.0.1", listener.port, KEY, 10)
    thread.join()
    threading.Timer(1.5, ours.send, ["late"]).start()
    assert accepted[0].recv() == "late"


def test_strangers_are_dropped_and_the_next_one_is_accepted(listener, monkeypatch):
    monkeypatch.setattr(tcp, "PROOF_S", 1)
    thread, accepted = accept_beside(listener)
    with socket.create_connection(("127.0.0.1", listener.port)):  # says nothing
        with pytest.raises(AuthenticationError):
            connect("127.0.0.1", listener.port, b"another", 10)
        ours = connect("127.0.0.1", listener.port, KEY, 10)
        thread.join()
    accepted[0].send("welcome")
    assert ours.recv() == "welcome"


def test_nobody_comes(listener):
    with pytest.raises(TimeoutError):
        listener.accept(time.monotonic() + 0.1)


def test_who_waits_to_be_accepted_learns_that_the_listener_has_gone(listener):
    thread, result = in_thread(connect, "127.0.0.1", listener.port, KEY, 10)
    time.sleep(0.2)
    listener.close()
    thread.join(10)
    assert isinstance(result[0], (OSError, EOFError))
