"""The same model as one of scikit-learn's own, for what knows these only, such as ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.validation import check_is_fitted


class PlainSupport:
    """What an estimator hands over to scikit-learn."""

    def to_sklearn(self: Any) -> Any:
        """A plain `Ridge` or `LogisticRegression` with these coefficients.

        It predicts the same, and knows nothing of robustness: fitted again, it would be the mean
        fit with its own penalty. Columns that hold groups (`group_columns`) are not among its
        features.

        Returns
        -------
        estimator of scikit-learn, fitted

        Examples
        --------
        >>> from drago import DRORegressor
        >>> model = DRORegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
        >>> plain = model.to_sklearn()
        >>> bool(abs(plain.predict([[3.0]]) - model.predict([[3.0]]))[0] < 1e-12)
        True
        """
        check_is_fitted(self)
        model = LogisticRegression() if is_classifier(self) else Ridge()
        model.set_params(fit_intercept=self.fit_intercept)
        names = ("coef_", "intercept_", "n_features_in_", "feature_names_in_", "classes_")
        for name in names:
            if hasattr(self, name):
                value = getattr(self, name)
                setattr(model, name, value.copy() if isinstance(value, np.ndarray) else value)
        model.n_iter_ = np.array([self.n_iter_], dtype=np.int32)
        return model
