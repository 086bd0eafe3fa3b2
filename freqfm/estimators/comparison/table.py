"""RecommenderComparison: the result of compare_recommenders."""

from html import escape

from freqfm._messages import cut
from freqfm.estimators.comparison.data import fitted


class RecommenderComparison:
    """A table of recommenders that were tested on the same interactions.

    :func:`~freqfm.model_selection.compare_recommenders` makes it, and describes it.

    Parameters
    ----------
    rows : list of Bunch
        Best first.
    data : MatrixData or TableData
        All interactions.
    """

    def __init__(self, rows, data):
        self.rows_ = rows
        self._data = data
        self._best = None

    @property
    def best_estimator_(self):
        """The recommender of the first row, fitted to all interactions when it is first used."""
        if self._best is None:
            row = self.rows_[0]
            self._best = fitted(row.name, row.estimator, self._data, self._data.all)
        return self._best

    def to_frame(self):
        """Return the rows as a DataFrame, by name.

        Returns
        -------
        frame : pandas DataFrame
            A column for each metric, and "difference_low" and "difference_high", "fit_seconds",
            "request_ms", "stored_bytes" and "error".
        """
        import pandas as pd

        columns = "fit_seconds", "request_ms", "stored_bytes", "error"
        rows = [
            {
                **row.scores,
                **dict(zip(("difference_low", "difference_high"), row.interval, strict=True)),
                **{name: row[name] for name in columns},
            }
            for row in self.rows_
        ]
        return pd.DataFrame(rows, index=pd.Index([row.name for row in self.rows_], name="name"))

    def _cells(self):
        """Return the lines of the table as text, the first of which is its head."""
        metrics = list(self.rows_[0].scores)
        head = ["", *metrics, "difference to the best", "fit, s", "request, ms", "stored, MB"]
        lines = [head]
        for row in self.rows_:
            line = [cut(row.name, 60)]
            if row.error:
                line.append(cut(row.error))
            else:
                low, high = row.interval
                line += [f"{row.scores[name]:.4f}" for name in metrics]
                line += ["" if row is self.rows_[0] else f"{low:+.4f} to {high:+.4f}"]
                line += [f"{row.fit_seconds:.2f}", f"{row.request_ms:.2f}"]
                line += [f"{row.stored_bytes / 1e6:.2f}"]
            lines.append(line)
        return lines

    def __repr__(self):
        lines = self._cells()
        whole = [line for line in lines if len(line) == len(lines[0])]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
        widths[0] = max(len(line[0]) for line in lines)
        return "\n".join(
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=False)),
                ]
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self):
        head, *lines = [[escape(cell) for cell in line] for line in self._cells()]
        html = "".join(f"<th>{cell}</th>" for cell in head)
        for line in lines:
            span = f" colspan={len(head) - 1}" if len(line) < len(head) else ""
            cells = "".join(f"<td{span}>{cell}</td>" for cell in line[1:])
            html += f"</tr><tr><th>{line[0]}</th>{cells}"
        return f"<table><tr>{html}</tr></table>"
