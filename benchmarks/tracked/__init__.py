"""Benchmarks that asv follows over commits; see ``asv.conf.json``.

They call the public interface only, so that they run with older commits too. What is compiled or
loaded is so in ``setup``. For comparisons with other packages see the scripts beside this folder.

    asv run --quick --python=same     # here, each benchmark once
    asv continuous main HEAD          # two commits, in separate environments
"""
