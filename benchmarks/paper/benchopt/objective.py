"""The paper's objective: CVaR or a chi2 ball, with the penalties in the paper's scale."""

from benchmark_utils import TARGET, Target
from benchopt import BaseObjective

import drago


class Objective(BaseObjective):
    """The normalised suboptimality of the worst-case loss, as in the paper's figures."""

    name = "penalised DRO"
    url = "https://arxiv.org/abs/2403.10763"
    min_benchopt_version = "1.10"
    requirements = ["pip::drago"]  # noqa: RUF012
    parameters = {  # noqa: RUF012
        "uncertainty": ["cvar", "chi2_ball"],
        "mu": [1.0],
        "nu": [1.0],
    }
    sampling_strategy = "callback"
    stopping_criterion = Target(strategy="callback", target=TARGET)
    test_dataset_name = "simulated"

    def set_data(self, X, y, task, data):
        self.data = data
        self.problem = drago.DROProblem(
            X,
            y,
            loss="squared" if task == "regression" else "multinomial",
            uncertainty=drago.CVaR(0.75) if self.uncertainty == "cvar" else drago.Chi2Ball(1.0),
            divergence="chi2",
            shift_cost=self.nu / len(y),
            l2_reg=self.mu,
        )
        self.optimum = drago.solve(self.problem, tol=1e-12).primal

    def get_objective(self):
        return {"problem": self.problem, "data": self.data}

    def get_one_result(self):
        problem = self.problem
        w, _ = problem.to_internal([[0.0] * problem.n_features] * problem.n_outputs)
        return {"w": w, "calls": 0}

    def evaluate_result(self, w, calls):
        coef, _ = self.problem.to_public(w, w[0] * 0.0)
        value = self.problem.objective(coef)
        share = (value - self.optimum) / (self.problem.reference[0] - self.optimum)
        return {"value": max(share, 0.0), "primal": value, "oracle_calls": calls}
