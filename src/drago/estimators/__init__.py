"""scikit-learn estimators."""

from drago.estimators.classifier import DROClassifier as DROClassifier
from drago.estimators.regressor import DRORegressor as DRORegressor
