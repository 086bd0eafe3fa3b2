"""
Train on a stream of rows
=========================

A log of clicks is stored in a folder of binary files, and read from there chunk by chunk. A fit on
the stream gives the same model as a fit in memory on the same rows, and training on chunks as they
arrive comes close to it in a single pass.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss

from freqfm import FMClassifier
from freqfm.datasets import RowStream, make_clicks, save_csr

# %%
# Forty thousand clicks, of which the last ten thousand are test rows.

X, y = make_clicks(40_000, (2000, 500, 50), random_state=0)
X_train, y_train, X_test, y_test = X[:30_000], y[:30_000], X[30_000:], y[30_000:]

# %%
# In memory, and from files.

params = {"max_iter": 3, "n_iter_no_change": None, "shuffle": False, "random_state": 0}
in_memory = FMClassifier(**params, early_stopping=False).fit(X_train, y_train)
with tempfile.TemporaryDirectory() as folder:
    save_csr(folder, X_train, y_train)
    stream = RowStream.from_csr(folder, chunk_size=2048)
    streamed = FMClassifier(**params).fit(stream)
    online, losses = FMClassifier(random_state=0), []
    for X_chunk, y_chunk in stream:
        online.partial_fit(X_chunk, y_chunk, classes=[0, 1])
        losses.append(log_loss(y_test, online.predict_proba(X_test)))

print("same model:", np.array_equal(in_memory.factors_, streamed.factors_))

# %%
# The log loss of the test rows, while chunks arrive.

figure, ax = plt.subplots()
ax.plot(2048 * np.arange(1, len(losses) + 1), losses, label="partial_fit, one pass")
loss = log_loss(y_test, streamed.predict_proba(X_test))
ax.axhline(loss, color="tab:orange", label="fit on the stream, three epochs")
ax.set(xlabel="rows so far", ylabel="log loss of test rows")
ax.legend()
plt.show()
