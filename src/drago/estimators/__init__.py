"""scikit-learn estimators."""

from drago.estimators.classifier import DROClassifier as DROClassifier
from drago.estimators.cv import DROClassifierCV as DROClassifierCV
from drago.estimators.cv import DRORegressorCV as DRORegressorCV
from drago.estimators.found_groups import find_groups as find_groups
from drago.estimators.group_finder import GroupFinder as GroupFinder
from drago.estimators.group_table import FoundGroups as FoundGroups
from drago.estimators.path import RobustPath as RobustPath
from drago.estimators.path import robust_path as robust_path
from drago.estimators.regressor import DRORegressor as DRORegressor
from drago.estimators.report import WorstCaseReport as WorstCaseReport
