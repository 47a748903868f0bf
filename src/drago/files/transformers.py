"""The classes of scikit-learn that a model file may hold: pipelines, and what comes before a model.

They are written as drago's own estimators are: parameters and fitted attributes, which are arrays,
numbers and text. So nothing in a file names a module, nothing is imported because of it, and what
is not in the table below is refused by name, when a model is saved and when it is loaded.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

# Attributes of a fitted transformer that are not public; all others end with an underscore.
_PRIVATE = frozenset(
    (
        *("_columns", "_n_features", "_name_to_fitted_passthrough", "_remainder"),
        "_transformer_to_input_indices",
        *("_fill_dtype", "_fit_dtype", "_precomputed"),
        *("_default_to_infrequent_mappings", "_drop_idx_after_grouping", "_infrequent_enabled"),
        *("_infrequent_indices", "_missing_indices", "_n_features_outs"),
        *("_max_degree", "_min_degree", "_n_out_full", "_scaler"),
        "_sklearn_output_config",
    )
)


@cache
def known() -> dict[str, type]:
    """The classes by their names."""
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        MaxAbsScaler,
        MinMaxScaler,
        Normalizer,
        OneHotEncoder,
        OrdinalEncoder,
        PolynomialFeatures,
        PowerTransformer,
        QuantileTransformer,
        RobustScaler,
        StandardScaler,
    )

    classes: tuple[type, ...] = (
        *(Pipeline, FeatureUnion, ColumnTransformer),
        *(StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, Normalizer),
        *(QuantileTransformer, PowerTransformer, PolynomialFeatures, FunctionTransformer),
        *(OneHotEncoder, OrdinalEncoder, SimpleImputer, MissingIndicator, VarianceThreshold),
    )
    return {cls.__name__: cls for cls in classes}


def check_parts(cls: type, params: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Raise a ValueError for what a plain transformer does not have.

    Nothing may hide a method, and a pipeline with a `memory` reads pickles from it when it is
    fitted again.
    """
    if params.get("memory") is not None:
        raise ValueError(
            f"a {cls.__name__} with memory={params['memory']!r} is not stored: use memory=None"
        )
    for name in fitted:
        own = name in _PRIVATE or (name.endswith("_") and not name.startswith("_"))
        if not own or hasattr(cls, name):
            raise ValueError(f"{name!r} is not known as an attribute of a fitted {cls.__name__}")


def dtype_of(text: str) -> np.dtype[Any]:
    """A dtype of bool, numbers, str or objects by its name."""
    found = np.dtype(text)
    if found.kind not in "biufUO" or found.names is not None:
        raise ValueError(f"the dtype {text!r} is not known")
    return found


def version() -> str:
    """That of scikit-learn."""
    import sklearn

    return sklearn.__version__


def warn_of_version(name: str, written: Any) -> None:
    """Say that another version of scikit-learn wrote a pipeline, as it does itself for pickles."""
    if written == version():
        return
    from sklearn.exceptions import InconsistentVersionWarning

    warnings.warn(
        InconsistentVersionWarning(
            estimator_name=name,
            current_sklearn_version=version(),
            original_sklearn_version=str(written),
        ),
        stacklevel=4,
    )
