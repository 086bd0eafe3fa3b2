"""Tables of the pages of results."""


def csv_table(header, rows, title=""):
    """Return the lines of a table in reStructuredText, with an empty one at the end."""
    lines = [f".. csv-table:: {title}".rstrip(), f"   :header: {_quoted(header)}", ""]
    return [*lines, *(f"   {_quoted(row)}" for row in rows), ""]


def _quoted(cells):
    return ", ".join(f'"{cell}"' for cell in cells)
