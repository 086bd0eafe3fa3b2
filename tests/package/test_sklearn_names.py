"""scikit-learn's private names. ``.ci/run`` has this with the oldest and the newest version too."""

import numpy as np
import pytest

from freqfm import BlendRecommender, InteractionRecommender, MFRecommender, _sklearn
from freqfm.datasets import IncrementalOneHotEncoder
from freqfm.metrics import normalized_entropy


def test_private_names_do_what_they_did():
    with pytest.raises(_sklearn.InvalidParameterError, match=r"'n_components' .* range \[1, .*0"):
        MFRecommender(0).fit(np.eye(3))
    blend = BlendRecommender([("a", MFRecommender(4))])
    assert blend.set_params(a__n_components=8).get_params()["a"].n_components == 8
    with pytest.raises(ValueError, match="egative"):
        normalized_entropy([0, 1], [0.5, 0.5], sample_weight=[1, -1])
    encoder = IncrementalOneHotEncoder().fit(np.array([["a"], ["b"]], dtype=object))
    assert list(encoder.get_feature_names_out(["x"])) == ["x_a", "x_b"]
    with pytest.raises(ValueError, match="pandas"):
        encoder.set_output(transform="pandas").transform([["a"]])
    history = [("u", "a"), ("u", "b"), ("v", "b")]
    model = InteractionRecommender(MFRecommender(2, max_iter=1)).fit(history)
    assert model.set_output(transform="pandas").transform(history).shape == (3, 2)
