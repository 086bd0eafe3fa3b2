"""Signals such as Ctrl-C, held back where an exception would leave work half done.

Python calls the handler of a signal between any two instructions of the main thread, and the
handler may raise. Code that must run as a whole, such as writing a checkpoint or waiting for
threads, runs inside :func:`hold_signals`; what arrives meanwhile is delivered afterwards.
"""

import contextlib
import signal
import threading

__all__ = ["hold_signals", "release_signals"]

# SIGINT comes last: it is restored first, so that a second Ctrl-C finds everything restored.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGALRM", "SIGINT")
    if hasattr(signal, name)
]

_previous = {}  # the handlers that ours replace, by signal
_pending = {}  # the frames interrupted by signals that are held back, by signal
_depth = 0  # 1 where signals are held back, else 0


@contextlib.contextmanager
def hold_signals():
    """Hold signals back while the block runs; deliver those that arrived when it ends.

    Blocks may be nested: signals are delivered at the end of the outermost, or where
    :func:`release_signals` lets them through. Only signals with a handler in Python are held back.
    In threads other than the main one, which never get signals, this does nothing.
    """
    global _depth
    if _depth or threading.current_thread() is not threading.main_thread():
        # They are held back already, or never come.
        yield
        return
    replaced = []
    try:
        _depth = 1
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _handle:
                _previous[number] = handler
                replaced.append(number)
                signal.signal(number, _handle)
        yield
    finally:
        for number in reversed(replaced):
            signal.signal(number, _previous[number])
        _depth = 0
        try:
            _deliver()
        finally:
            if replaced:
                _depth = 0


@contextlib.contextmanager
def release_signals():
    """Deliver signals as they arrive while the block runs, inside :func:`hold_signals`.

    A handler that raises ends the block; from then on signals are held back again.
    """
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    depth = _depth
    try:
        _depth = 0
        _deliver()
        yield
    finally:
        _depth = depth


def _handle(number, frame):
    _pending[number] = frame
    _deliver()


def _deliver():
    """Call the handlers of the signals that have arrived, unless signals are held back."""
    global _depth
    while _pending and _depth == 0:
        number, frame = _pending.popitem()
        # Held back while an exception from the handler propagates.
        _depth = 1
        _previous[number](number, frame)
        _depth = 0
