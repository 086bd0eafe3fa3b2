"""Signals that are held back, and delivered."""

import gc
import os
import signal
import threading

import pytest

from freqfm import _signals
from freqfm._signals import hold_signals, release_signals


@pytest.fixture(autouse=True)
def ctrl_c():
    """Make the signal an exception, which it is not where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not _signals._held and not _signals._pending
    signal.signal(signal.SIGINT, before)


def press():
    signal.raise_signal(signal.SIGINT)


def test_signals_arrive_at_the_end_of_the_outermost_block():
    seen = []
    with pytest.raises(KeyboardInterrupt), hold_signals():
        with hold_signals():
            press()
            seen.append("inner")
        press()
        seen.append("outer")
    assert seen == ["inner", "outer"]


def test_a_signal_may_arrive_while_handlers_are_restored(monkeypatch):
    set_handler = signal.signal
    before = set_handler(signal.SIGTERM, lambda number, frame: None)
    ours = signal.getsignal(signal.SIGTERM)

    def set_handler_and_press(number, handler):
        set_handler(number, handler)
        if handler is signal.default_int_handler:
            press()

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch, hold_signals():
        patch.setattr(signal, "signal", set_handler_and_press)
    assert not _signals._held
    assert set_handler(signal.SIGTERM, before) is ours


def test_released_signals_arrive_at_once_and_the_next_one_is_held_back():
    seen = []
    with pytest.raises(KeyboardInterrupt), hold_signals():
        try:
            with release_signals():
                try:
                    press()
                    seen.append("not reached")
                finally:
                    press()
                    seen.append("cleanup")
        finally:
            press()
            seen.append("more cleanup")
    assert seen == ["cleanup", "more cleanup"]


def test_a_signal_that_was_held_back_arrives_when_signals_are_released():
    seen = []
    with pytest.raises(KeyboardInterrupt), hold_signals():
        press()
        seen.append("held")
        with release_signals():
            seen.append("not reached")
    assert seen == ["held"]


def test_blocks_within_released_ones_hold_signals_back():
    seen = []
    with pytest.raises(KeyboardInterrupt), hold_signals(), release_signals():
        with hold_signals():
            press()
            seen.append("held")
        seen.append("not reached")
    assert seen == ["held"]


def test_a_signal_just_before_the_end_of_a_released_block_changes_nothing_later():
    # Where the exception is raised on the way into the end of the block, that is not run.
    with pytest.raises(KeyboardInterrupt), hold_signals():
        released = release_signals()
        released.__enter__()
        press()
    del released
    gc.collect()
    assert not _signals._held
    with pytest.raises(KeyboardInterrupt), hold_signals():
        assert signal.getsignal(signal.SIGINT) is _signals._handle
        press()


def test_handlers_that_return_let_the_block_go_on():
    seen = []
    signal.signal(signal.SIGINT, lambda *args: seen.append("handled"))
    with hold_signals():
        press()
        seen.append("held")
        with release_signals():
            press()
            seen.append("released")
        press()
    press()
    assert seen == ["held", "handled", "handled", "released", "handled", "handled"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_exceptions_pass():
    with pytest.raises(ZeroDivisionError), hold_signals(), release_signals():
        _ = 1 / 0


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with hold_signals(), release_signals():
            seen.append(_signals._held)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_by_another_thread_gets_its_signals():
    codes = []

    def fork():
        child = os.fork()
        if child == 0:
            try:
                press()
            except KeyboardInterrupt:
                os._exit(7)
            os._exit(0)  # held back for ever
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def fork_in_a_thread():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    with pytest.raises(KeyboardInterrupt), hold_signals():
        press()  # is not the child's
        fork_in_a_thread()
    with hold_signals(), release_signals():
        fork_in_a_thread()
    assert codes == [7, 7]
