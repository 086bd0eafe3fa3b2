"""Names of scikit-learn that are private and may move: no other file imports them."""

# ruff: noqa: F401
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils._set_output import _get_output_config as get_output_config
from sklearn.utils._set_output import _SetOutputMixin as SetOutputMixin
from sklearn.utils._set_output import _wrap_data_with_container as wrap_data_with_container
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.validation import _check_feature_names_in as check_feature_names_in
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples

#: Attributes with which scikit-learn 1.9 and later marks an estimator that has callbacks, and that
#: belong to a call or a process, not to a model: the callbacks, the call of a search, and two of
#: calls of ``fit``.
CALLBACKS, CALL_OF_SEARCH = "_skl_callbacks", "_parent_callback_ctx"
CALLBACK_ATTRIBUTES = (CALLBACKS, CALL_OF_SEARCH, "_callback_fit_ctx", "_skl_callbacks_to_teardown")


def callbacks_of(estimator):
    """Return the callbacks that were set on an estimator."""
    return getattr(estimator, CALLBACKS, [])
