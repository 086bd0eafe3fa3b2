"""Signals such as Ctrl-C, held back while an exception would interrupt work that must complete.

Python calls the handler of a signal between any two instructions of the main thread, and the
handler may raise. Code that must run as a whole, such as writing a checkpoint or waiting for
threads, runs inside :func:`hold_signals`; what arrives meanwhile is delivered afterwards.
"""

import contextlib
import os
import signal
import threading

# SIGINT is restored last, so that a second Ctrl-C finds everything restored.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGALRM", "SIGINT")
    if hasattr(signal, name)
]

_previous = {}  # the handlers that ours replace, by signal
_pending = {}  # the frames interrupted by signals that are held back, by signal
_held = False  # whether signals are held back
_holder = None  # the thread that holds them back, or did last


@contextlib.contextmanager
def hold_signals():
    """Hold signals back while the block runs; deliver those that arrived when it ends.

    Blocks may be nested: signals are delivered at the end of the outermost, or where
    :func:`release_signals` lets them through. Only signals with a handler in Python are held back.
    In threads other than the main one, which never get signals, this does nothing.
    """
    global _held, _holder
    if _held or threading.current_thread() is not threading.main_thread():
        # They are held back already, or never come.
        yield
        return
    replaced = []
    try:
        _held, _holder = True, threading.get_ident()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _handle:
                _previous[number] = handler
                replaced.append(number)
                signal.signal(number, _handle)
        yield
    finally:
        try:
            for number in replaced:
                signal.signal(number, _previous[number])
        finally:
            _held = False
            try:
                _deliver()
            finally:
                if replaced:
                    _held = False


class release_signals:
    """Deliver signals as they arrive while the block runs, inside :func:`hold_signals`.

    A handler that raises ends the block; from then on signals are held back again.
    """

    # Not a generator: if a handler raises before its end is run, the end would be run when the
    # generator is deleted, any time later.

    def __enter__(self):
        global _held
        self._before = _held
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            _held = False
            _deliver()
        except BaseException:
            _held = self._before
            raise

    def __exit__(self, *exception):
        global _held
        if threading.current_thread() is threading.main_thread():
            _held = self._before


def _handle(number, frame):
    _pending[number] = frame
    _deliver()


def _deliver():
    """Call the handlers of the signals that have arrived, unless signals are held back."""
    global _held
    while _pending and not _held:
        number, frame = _pending.popitem()
        # Held back while an exception from the handler propagates.
        _held = True
        _previous[number](number, frame)
        _held = False


def _let_go():
    """Undo in a forked child what a thread holds back that is not in it."""
    global _held
    if threading.get_ident() == _holder:
        # The block goes on in the child.
        return
    _held = False
    _pending.clear()
    for number, handler in _previous.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
