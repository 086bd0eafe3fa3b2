"""How InteractionRecommender passes features by id to its recommender."""

import copy
from numbers import Integral

import numpy as np
from sklearn.base import clone

from freqfm._input.columns import role_of
from freqfm._input.frames import is_frame
from freqfm._input.ids import extend_ids, find_codes
from freqfm._messages import shorten
from freqfm.estimators.interactions.feature_tables import (
    FeatureTable,
    encode,
    new_encoder,
    place_rows,
)

_ROLES = "user", "item"


class FeatureEncodingMixin:
    """Encodes ``user_features`` and ``item_features`` in the order of the ids."""

    def _pass_features(self, reset, queries):
        """Number the ids that have features, and give these to the recommender's backbone.

        ``queries`` are the backbone's parameters ``users`` and ``context``, if there is a context.
        """
        given = {role: getattr(self, f"{role}_features") for role in _ROLES}
        given = {role: frame for role, frame in given.items() if frame is not None}
        if reset:
            for role in _ROLES:
                self.__dict__.pop(f"{role}_encoder_", None)
        if not given and not queries:
            return
        tables = {
            role: FeatureTable(role, frame, self._column_of(role)) for role, frame in given.items()
        }
        features = dict(queries)
        for role, table in tables.items():
            codes = self._add_ids(role, table.ids, f"the ids of {table.name}")
            if reset:
                setattr(self, f"{role}_encoder_", new_encoder(table))
            matrix = encode(self._encoder_of(role), table)
            known, _ = self._ids(role)
            features[f"{role}_features"] = place_rows(table, matrix, codes, known)
        self.estimator_.set_params(backbone=self._backbone(features))

    def _backbone(self, features):
        """Return the backbone of the recommender with these features."""
        from freqfm.backbones import Context, Features

        backbone = getattr(self.estimator_, "backbone", None)
        if isinstance(backbone, str) and backbone in ("linear", "features", "context"):
            backbone = Features()
        if "context" in features and type(backbone) is Features:
            backbone = Context(**backbone.get_params(deep=False))
        if not isinstance(backbone, Features):
            named = " and ".join(sorted({*features} - {"users"}))
            raise ValueError(
                f"{named} need a recommender whose backbone is Features or Context, such as "
                f"MFRecommender(); got {self.estimator_!r}."
            )
        chosen = getattr(self.estimator, "backbone", None)
        both = [name for name in features if getattr(chosen, name, None) is not None]
        if both and not hasattr(self.estimator, "_unfinished"):
            raise ValueError(
                f"{both[0]} is given twice, by id and to the backbone of the estimator; leave one "
                f"of them out."
            )
        return clone(backbone).set_params(**features)

    def _column_of(self, role):
        """Return the name of the interactions' column of users or items, if it has one."""
        key, names = getattr(self, role), getattr(self, "feature_names_in_", [])
        if isinstance(key, Integral):
            return names[key] if len(names) else None
        if key != "auto":
            return key
        found = [name for name in names if role_of(name) == role]
        return found[0] if len(found) == 1 else None

    def _encoder_of(self, role):
        """Return the encoder that fit has made, or raise."""
        encoder = getattr(self, f"{role}_encoder_", None)
        if encoder is None:
            raise ValueError(
                f"{role}_features needs a model that was fitted with features of {role}s: "
                f"InteractionRecommender(..., {role}_features=...)."
            )
        return encoder

    def _encoded(self, role, frame, unknown):
        """Return ids and features of users or items that are not in the model.

        Returns
        -------
        ids : ndarray of shape (n,)
        features : csr_array of shape (n, n_features)
        is_unknown : ndarray of bool, of shape (n,)
            Which have features, but none that fit has seen.
        """
        encoder = self._encoder_of(role)
        table = FeatureTable(role, frame, self._column_of(role))
        codes = find_codes(*self._ids(role), table.ids, f"the ids of {table.name}")
        known = table.ids[codes >= 0]
        if len(known):
            raise ValueError(
                f"{table.name} holds {role}s that are in the model, such as "
                f"{shorten(known[:5])}; leave them out: the model has its own features "
                f"of them."
            )
        features = encode(encoder, table, unknown)
        is_unknown = np.array([bool(row) for row in table.rows]) & (np.diff(features.indptr) == 0)
        return table.ids, features, is_unknown

    def _with_new_items(self, frame, unknown):
        """Return a copy that numbers the items of a table too, and the matrix of their features.

        Items whose features are all unknown are left out.
        """
        ids, features, is_unknown = self._encoded("item", frame, unknown)
        ids, features = ids[~is_unknown], features[~is_unknown]
        model = copy.copy(self)
        codes, known, order = extend_ids(
            *self._ids("item", whole=True), ids, "the ids of item_features"
        )
        model._keep_ids("item", known, order)
        # New ids are numbered in their sorted order.
        return model, features[codes.argsort()]

    def _item_vectors(self, vectors):
        """Return features by which items differ, a row for each item; None if there are none."""
        if not is_frame(vectors):
            return vectors
        table = FeatureTable("item", vectors, self._column_of("item"), "item_vectors")
        codes = find_codes(*self._ids("item"), table.ids, f"the ids of {table.name}")
        known, _ = self._ids("item")
        matrix = encode(new_encoder(table), table)
        return place_rows(table, matrix[codes >= 0], codes[codes >= 0], known)
