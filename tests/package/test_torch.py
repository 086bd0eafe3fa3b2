"""Adam, Adagrad and SGD against ``torch.optim``, step for step, where PyTorch is installed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference.fm import epoch_order

from freqfm import FMClassifier
from freqfm.initializers import Normal
from freqfm.optimizers import SGD, Adagrad, Adam

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "optimizer, reference",
    [
        (SGD(0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
        (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
        (
            Adam(0.02, beta_1=0.8, beta_2=0.95, lazy=False),
            lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95)),
        ),
    ],
    ids=["SGD", "Adagrad", "Adam"],
)
def test_steps_equal_those_of_torch(clicks, optimizer, reference):
    X, y = clicks
    model = FMClassifier(
        4,
        optimizer=optimizer,
        max_iter=3,
        batch_size=15,
        alpha_linear=0,
        alpha_factors=0,
        init=Normal(0.3),
        n_iter_no_change=None,
        random_state=0,
    ).fit(X, y)
    generator = np.random.default_rng(model._seed)
    start = np.float32(0.3) * generator.standard_normal((12, 4), dtype=np.float32)
    V = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    w = torch.nn.Parameter(torch.zeros(12, dtype=torch.float64))
    share = y.mean()
    b = torch.nn.Parameter(torch.tensor(np.log(share / (1 - share)), dtype=torch.float64))
    steps = reference([V, w, b])
    rows, target = torch.tensor(X.toarray()).double(), torch.tensor(y).double()
    for epoch in range(3):
        for batch in np.split(epoch_order(60, model._seed, epoch), [15, 30, 45]):
            x = rows[batch]
            score = b + x @ w + ((x @ V) ** 2 - x**2 @ V**2).sum(1) / 2
            steps.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(score, target[batch]).backward()
            steps.step()
    assert_allclose(model.factors_, V.detach().numpy(), rtol=2e-4, atol=3e-5)
    assert_allclose(model.coef_, w.detach().numpy(), rtol=2e-4, atol=3e-5)
    assert_allclose(model.intercept_, b.item(), rtol=2e-4)
