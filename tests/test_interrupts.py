"""Ctrl-C and SIGTERM: raised at once, held back while a write is going on, and remembered."""

import os
import signal
import threading

import pytest

from moeinspect.interrupts import handled, shielded, was_interrupted


@pytest.fixture(autouse=True)
def heeded():
    """Whoever runs the tests may ignore Ctrl-C, as a shell's background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_keyboard_interrupt_and_is_remembered(number):
    with pytest.raises(KeyboardInterrupt), handled():
        assert not was_interrupted()
        os.kill(os.getpid(), number)
    assert was_interrupted()


def test_a_shield_holds_a_signal_back_until_the_block_is_whole():
    done = []
    with pytest.raises(KeyboardInterrupt), handled():
        with shielded():
            os.kill(os.getpid(), signal.SIGINT)
            with shielded():
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_an_error_inside_a_shield_stays_that_error():
    with pytest.raises(OSError, match="disk"), handled(), shielded():
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("disk")
    assert was_interrupted()


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with handled():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handled():
            os.kill(os.getpid(), signal.SIGINT)
        assert not was_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_runs_without_handlers():
    seen = []

    def work():
        with handled():
            seen.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
