"""What a fit says with ``verbose``: a line for each phase, and how far a long one has come."""

import contextlib
import time

# Epochs may take a millisecond, and a bar is drawn no more often than this, in seconds.
_BETWEEN_DRAWINGS = 0.1

# Seconds between two reports of how many parts of a phase are done.
_BETWEEN_REPORTS = 2.0


def announce(verbose, phase):
    """Print what a fit is about to do.

    Parameters
    ----------
    verbose : int
        0 prints nothing.
    phase : str
        Such as "holding out validation rows".
    """
    if verbose:
        print(phase, flush=True)


@contextlib.contextmanager
def announced_parts(verbose, phase, n_parts, unit):
    """Announce a phase of many parts; context manager of a function that shows how many are done.

    Parameters
    ----------
    verbose : int
        See :func:`shown_progress`.
    phase : str
    n_parts : int
    unit : str
        What a part is.

    Yields
    ------
    report : callable
        ``report(n_done)``, to be called after each part; shows the time left, every two seconds.
    """
    announce(verbose, phase)
    started = reported = time.perf_counter()
    shown = shown_progress(verbose, 0, n_parts, unit) if verbose else contextlib.nullcontext()
    with shown as show:

        def report(n_done):
            nonlocal reported
            now = time.perf_counter()
            if show and (n_done == n_parts or now - reported >= _BETWEEN_REPORTS):
                reported, seconds = now, now - started
                left = seconds / n_done * (n_parts - n_done)
                show(n_done, f"{seconds:.1f} s, {left:.1f} s left")

        yield report


@contextlib.contextmanager
def announced_fits(verbose, n_fits, costs, seconds):
    """Context manager of a function that announces each of several fits, with the time left.

    Parameters
    ----------
    verbose : int
        See :func:`shown_progress`; without a bar there is a line for each fit.
    n_fits : int
        Number of fits, at most.
    costs : dict of float
        By the name of an estimator: how long a fit takes, about, in any unit.
    seconds : dict of float
        How long fits took. The caller adds to it; estimators in it need no estimate.

    Yields
    ------
    begin : callable
        ``begin(phase, to_do)`` with the names of the estimators yet to be fitted, the one that
        begins first among them.
    """
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        bar = _started_bar(stack, 0, n_fits, "fit") if verbose == 1 else None

        def begin(phase, to_do):
            n_done, text = n_fits - len(to_do), f"{time.perf_counter() - started:.1f} s"
            if known := sum(costs[name] for name in seconds):
                rate = sum(seconds.values()) / known
                left = sum(seconds.get(name, rate * costs[name]) for name in to_do)
                text += f", about {left:.1f} s left"
            if bar is None:
                announce(verbose, f"{phase}; fit {min(n_done + 1, n_fits)} of {n_fits}, {text}")
            else:
                bar.show(n_done, f"{text}: {phase}")
                bar.draw()

        yield begin
        if bar is not None:
            begin("done", [])


@contextlib.contextmanager
def shown_progress(verbose, n_done, last, unit="epoch"):
    """Context manager of a function that shows how far a fit has come.

    Parameters
    ----------
    verbose : int
        1 shows a bar in a terminal or notebook if rich is installed, else a line for each epoch. 2
        and more show lines.
    n_done : int
        Number of epochs trained before.
    last : int
        Number of epochs at the end, unless training stops earlier.
    unit : str, default="epoch"
        What is counted.

    Yields
    ------
    show : callable
        ``show(n_done, text)``, to be called after each epoch.
    """
    with contextlib.ExitStack() as stack:
        bar = _started_bar(stack, n_done, last, unit) if verbose == 1 else None
        if bar is not None:
            stack.callback(bar.draw)
            yield bar.show
        else:
            yield lambda n_done, text: print(f"{unit} {n_done:3d}/{last}  {text}", flush=True)


class _Bar:
    """A bar of rich; ``redraw`` puts its present state on the screen."""

    def __init__(self, progress, task, redraw):
        self._progress = progress
        self._task = task
        self._redraw = redraw
        self._drawn = time.perf_counter()

    def show(self, n_done, text):
        """Move the bar."""
        self._progress.update(self._task, completed=n_done, description=text)
        if time.perf_counter() - self._drawn > _BETWEEN_DRAWINGS:
            self.draw()

    def draw(self):
        """Draw the bar."""
        self._drawn = time.perf_counter()
        self._redraw()


def _started_bar(stack, n_done, last, unit):
    """Return a bar that ``stack`` closes; None without rich, or where output is a file or pipe."""
    try:
        from rich import get_console
        from rich.errors import LiveError
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    console = get_console()
    if not (console.is_jupyter or console.is_interactive):
        return None
    done = TextColumn(f"{unit} {{task.completed}}/{{task.total}}")
    text = TextColumn("{task.description}", markup=False)
    # Without a thread of its own: the bar moves after an epoch.
    progress = Progress(done, BarColumn(20), text, console=console, auto_refresh=False)
    task = progress.add_task("", total=last, completed=n_done)
    if console.is_jupyter:
        # rich's own live display would need ipywidgets.
        from IPython.display import display

        shown = display(progress, display_id=True)
        return _Bar(progress, task, lambda: shown.update(progress))
    try:
        stack.enter_context(progress)
    except LiveError:  # before rich 14.1, if another bar is on the screen
        return None
    return _Bar(progress, task, progress.refresh)
