"""The factors of machines, each a class between ``BaseFM`` and an estimator."""
