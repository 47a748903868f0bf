"""scikit-learn estimators."""

from drago.estimators.classifier import DROClassifier as DROClassifier
from drago.estimators.cv import DROClassifierCV as DROClassifierCV
from drago.estimators.cv import DRORegressorCV as DRORegressorCV
from drago.estimators.path import RobustPath as RobustPath
from drago.estimators.path import robust_path as robust_path
from drago.estimators.regressor import DRORegressor as DRORegressor
from drago.estimators.report import WorstCaseReport as WorstCaseReport
