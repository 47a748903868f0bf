"""drago: distributionally robust learning with a certificate of optimality and no solver to tune.

The rows get new weights q, chosen to make the loss as large as the uncertainty set Q allows; the
model is fitted for those weights:

``min over w  max over q in Q  sum_i q_i loss_i(w) - nu D(q || p) + (mu/2) ||w||^2``

p are the normal (nominal) weights, D measures how far q is from p, nu is `shift_cost` and mu is
`l2_reg`. The result comes with a proof of how close it is to the minimum.

Names are loaded when they are first used: importing the package needs NumPy alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from drago._version import __version__

if TYPE_CHECKING:
    from drago import datasets as datasets
    from drago import plotting as plotting
    from drago import report as report
    from drago.advice.audit import Audit as Audit
    from drago.advice.audit import audit as audit
    from drago.advice.compare import compare as compare
    from drago.advice.table import Comparison as Comparison
    from drago.certificate.certificate import Certificate as Certificate
    from drago.certificate.certify import certify as certify
    from drago.estimators import DROClassifier as DROClassifier
    from drago.estimators import DROClassifierCV as DROClassifierCV
    from drago.estimators import DRORegressor as DRORegressor
    from drago.estimators import DRORegressorCV as DRORegressorCV
    from drago.estimators import FoundGroups as FoundGroups
    from drago.estimators import GroupFinder as GroupFinder
    from drago.estimators import RobustPath as RobustPath
    from drago.estimators import WorstCaseReport as WorstCaseReport
    from drago.estimators import find_groups as find_groups
    from drago.estimators import robust_path as robust_path
    from drago.estimators.collapse import CollapseWarning as CollapseWarning
    from drago.estimators.groups import cross_groups as cross_groups
    from drago.files.blocks import SourceChangedError as SourceChangedError
    from drago.files.checkpoint import CheckpointError as CheckpointError
    from drago.files.models import ModelFileError as ModelFileError
    from drago.files.models import load as load
    from drago.files.models import save as save
    from drago.problem import DROProblem as DROProblem
    from drago.report import html_report as html_report
    from drago.result import SolverResult as SolverResult
    from drago.result import Status as Status
    from drago.rows.cluster.engine import ClusterError as ClusterError
    from drago.scorers import tail_loss_scorer as tail_loss_scorer
    from drago.scorers import worst_group_scorer as worst_group_scorer
    from drago.solvers.baselines import LSVRG as LSVRG
    from drago.solvers.baselines import SGD as SGD
    from drago.solvers.baselines import Prospect as Prospect
    from drago.solvers.drago.method import Drago as Drago
    from drago.solvers.full_batch import AGOG as AGOG
    from drago.solvers.full_batch import GradientDescent as GradientDescent
    from drago.solvers.lbfgs import LBFGS as LBFGS
    from drago.solvers.newton import Newton as Newton
    from drago.solvers.solve import solve as solve
    from drago.solvers.tune import tune as tune
    from drago.sources.api import from_arrays as from_arrays
    from drago.sources.api import from_arrow as from_arrow
    from drago.sources.api import from_batches as from_batches
    from drago.sources.api import read_parquet as read_parquet
    from drago.sources.cache import CacheError as CacheError
    from drago.sources.cluster import from_dask as from_dask
    from drago.sources.source import Source as Source
    from drago.terms.constraints import Box as Box
    from drago.terms.constraints import L2Ball as L2Ball
    from drago.terms.constraints import NonNegative as NonNegative
    from drago.terms.divergences import KL as KL
    from drago.terms.divergences import Chi2 as Chi2
    from drago.terms.losses import Huber as Huber
    from drago.terms.losses import Logistic as Logistic
    from drago.terms.losses import Multinomial as Multinomial
    from drago.terms.losses import Squared as Squared
    from drago.terms.uncertainty import ESRM as ESRM
    from drago.terms.uncertainty import Chi2Ball as Chi2Ball
    from drago.terms.uncertainty import CVaR as CVaR
    from drago.terms.uncertainty import Extremile as Extremile
    from drago.terms.uncertainty import Grouped as Grouped
    from drago.terms.uncertainty import KLBall as KLBall
    from drago.terms.uncertainty import Simplex as Simplex
    from drago.terms.uncertainty import Spectrum as Spectrum

_HOME = {
    "datasets": "",
    "plotting": "",
    "report": "",
    "Certificate": "certificate.certificate",
    "certify": "certificate.certify",
    "CheckpointError": "files.checkpoint",
    "ClusterError": "rows.cluster.engine",
    "Box": "terms.constraints",
    "L2Ball": "terms.constraints",
    "NonNegative": "terms.constraints",
    "Chi2": "terms.divergences",
    "KL": "terms.divergences",
    "DROClassifier": "estimators",
    "DROClassifierCV": "estimators",
    "DRORegressor": "estimators",
    "DRORegressorCV": "estimators",
    "FoundGroups": "estimators",
    "GroupFinder": "estimators",
    "RobustPath": "estimators",
    "WorstCaseReport": "estimators",
    "find_groups": "estimators",
    "robust_path": "estimators",
    "CollapseWarning": "estimators.collapse",
    "Audit": "advice.audit",
    "audit": "advice.audit",
    "compare": "advice.compare",
    "Comparison": "advice.table",
    "cross_groups": "estimators.groups",
    "html_report": "report",
    "tail_loss_scorer": "scorers",
    "worst_group_scorer": "scorers",
    "Squared": "terms.losses",
    "Huber": "terms.losses",
    "Logistic": "terms.losses",
    "Multinomial": "terms.losses",
    "ModelFileError": "files.models",
    "load": "files.models",
    "save": "files.models",
    "DROProblem": "problem",
    "SolverResult": "result",
    "Status": "result",
    "solve": "solvers.solve",
    "Drago": "solvers.drago.method",
    "LBFGS": "solvers.lbfgs",
    "Newton": "solvers.newton",
    "SGD": "solvers.baselines",
    "LSVRG": "solvers.baselines",
    "Prospect": "solvers.baselines",
    "GradientDescent": "solvers.full_batch",
    "AGOG": "solvers.full_batch",
    "tune": "solvers.tune",
    "read_parquet": "sources.api",
    "from_arrays": "sources.api",
    "from_arrow": "sources.api",
    "from_batches": "sources.api",
    "CacheError": "sources.cache",
    "from_dask": "sources.cluster",
    "Source": "sources.source",
    "SourceChangedError": "files.blocks",
    "CVaR": "terms.uncertainty",
    "Extremile": "terms.uncertainty",
    "ESRM": "terms.uncertainty",
    "Spectrum": "terms.uncertainty",
    "Chi2Ball": "terms.uncertainty",
    "KLBall": "terms.uncertainty",
    "Simplex": "terms.uncertainty",
    "Grouped": "terms.uncertainty",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'drago' has no attribute {name!r}")
    if not _HOME[name]:
        return importlib.import_module(f"drago.{name}")
    value = getattr(importlib.import_module(f"drago.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
