"""Progress of a fit, for ``verbose``: a bar if rich is installed, else a line for each epoch."""

import contextlib
import time

# Epochs may take a millisecond, and a bar is drawn no more often than this, in seconds.
_BETWEEN_DRAWINGS = 0.1


@contextlib.contextmanager
def shown_progress(verbose, epoch, last):
    """Context manager of a function that shows how far training has come.

    Parameters
    ----------
    verbose : int
        1 shows a bar in a terminal or notebook if rich is installed, else a line for each epoch. 2
        and more show lines.
    epoch : int
        Number of epochs trained before.
    last : int
        Number of epochs at the end, unless training stops earlier.

    Yields
    ------
    show : callable
        ``show(epoch, text)``, to be called after each epoch.
    """
    with contextlib.ExitStack() as stack:
        bar = _started_bar(stack, epoch, last) if verbose == 1 else None
        if bar is not None:
            stack.callback(bar.draw)
            yield bar.show
        else:
            yield lambda epoch, text: print(f"epoch {epoch:3d}/{last}  {text}")


class _Bar:
    """A bar of rich; ``redraw`` puts its present state on the screen."""

    def __init__(self, progress, task, redraw):
        self._progress = progress
        self._task = task
        self._redraw = redraw
        self._drawn = time.perf_counter()

    def show(self, epoch, text):
        """Move the bar."""
        self._progress.update(self._task, completed=epoch, description=text)
        if time.perf_counter() - self._drawn > _BETWEEN_DRAWINGS:
            self.draw()

    def draw(self):
        """Draw the bar."""
        self._drawn = time.perf_counter()
        self._redraw()


def _started_bar(stack, epoch, last):
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
    done = TextColumn("epoch {task.completed}/{task.total}")
    text = TextColumn("{task.description}", markup=False)
    # Without a thread of its own: the bar moves after an epoch.
    progress = Progress(done, BarColumn(20), text, console=console, auto_refresh=False)
    task = progress.add_task("", total=last, completed=epoch)
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
