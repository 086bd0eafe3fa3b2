"""RecommenderComparison: the result of compare_recommenders."""

from html import escape

from freqfm._messages import cut

_COLUMNS = "fit_seconds", "request_ms", "stored_bytes", "error"


class RecommenderComparison:
    """A table of recommenders that were tested on the same interactions.

    :func:`~freqfm.model_selection.compare_recommenders` makes it, and describes it.

    Parameters
    ----------
    rows : list of Bunch
        Best first.
    data : ComparedData
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
            self._best = self._data.fit(row.name, row.estimator, self._data.all)
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

        rows = {}
        for row in self.rows_:
            low, high = row.interval
            rows[row.name] = {**row.scores, "difference_low": low, "difference_high": high}
            rows[row.name] |= {name: row[name] for name in _COLUMNS}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("name")

    def _lines(self):
        """Return the lines of the table as text, the first of which is its head."""
        head = [*self.rows_[0].scores, "difference to the best", "fit, s", "request, ms", "MB"]
        lines = [["", *head]]
        for row in self.rows_:
            cells = [cut(row.error)] if row.error else [f"{of:.4f}" for of in row.scores.values()]
            if not row.error:
                low, high = row.interval
                cells += [f"{low:+.4f} to {high:+.4f}" if low or high else ""]
                numbers = row.fit_seconds, row.request_ms, row.stored_bytes / 1e6
                cells += [f"{number:.2f}" for number in numbers]
            lines.append([cut(row.name, 60), *cells])
        return lines

    def __repr__(self):
        lines = self._lines()
        whole = [line for line in lines if len(line) == len(lines[0])]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
        widths[0] = max(len(line[0]) for line in lines)
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        )

    def _repr_html_(self):
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in self._lines())
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
