"""What finished runs say about the claims of each paper.

Each module has the name of a ``PAPER``; ``KEPT``, the results files that it keeps and the functions
that keep them, without what is not shown; and ``claims()``, which yields each ``Claim`` of the
paper with our figures.
"""
