"""The paper's rule for the step size."""

import numpy as np
import pytest

import drago
from cases import make
from drago.solvers.tune import STEP_SIZES


def test_the_chosen_step_is_the_best_of_the_grid():
    problem = make(n=200)
    found = drago.tune(problem, drago.SGD(batch_size=16), seeds=(0, 1), n_passes=20)
    assert [trial.step_size for trial in found.trials] == list(STEP_SIZES)
    values = {trial.step_size: trial.objective for trial in found.trials}
    assert values[found.step_size] == min(values.values())
    assert found.solver == drago.SGD(batch_size=16, step_size=found.step_size)
    assert values[found.step_size] < values[1e-4]
    kept = [trial for trial in found.trials if np.isfinite(trial.objective)]
    for trial in kept:
        assert len(trial.by_seed) == 2
        assert trial.objective == pytest.approx(np.mean(trial.by_seed))


def test_it_is_the_mean_of_the_last_ten_passes():
    """Recomputed from what a run of its own shows."""
    from drago.loop.loop import Loop, Stop
    from drago.solvers.baselines import _SGDRun

    problem = make(n=64)
    settings = drago.SGD(step_size=0.05, batch_size=16)
    found = drago.tune(problem, settings, grid=[0.05], seeds=[4], n_passes=25)
    values = []

    class Watch(Loop):
        def observe(self, iterate):
            values.append(self.problem.objective(iterate.w[:, 0]))
            if iterate.n_iter == 25:
                raise Stop

    run = _SGDRun(problem, Watch(problem, 0.0, random_state=4), settings)
    with pytest.raises(Stop):
        run.run(0.05)
    assert len(values) == 25
    assert found.trials[0].objective == pytest.approx(np.mean(values[-10:]), rel=1e-12)


def test_steps_that_diverge_for_any_seed_are_discarded():
    problem = make(n=100)
    found = drago.tune(problem, "lsvrg", grid=[0.01, 50.0], seeds=(0, 1), n_passes=20)
    assert found.step_size == 0.01
    assert found.trials[1].objective == np.inf


def test_level_steps_go_to_the_largest():
    problem = make(n=100, shift_cost=1.0)
    found = drago.tune(problem, "lsvrg", grid=[0.01, 0.02], seeds=[0], n_passes=400)
    low, high = (trial.objective for trial in found.trials)
    assert low == pytest.approx(high, rel=1e-13)  # what `tune` calls level
    assert found.step_size == 0.02


def test_drago_can_be_tuned():
    problem = make(n=100, l2_reg=1.0)
    settings = drago.Drago(step_size=0.1, metric="euclidean", start="paper", block_size="n/d")
    found = drago.tune(problem, settings, grid=[1e-3, 0.1], seeds=[0], n_passes=60)
    assert found.step_size == 0.1 and found.solver.block_size == "n/d"
    assert drago.solve(problem, found.solver, tol=1e-5).status == "optimal"


def test_refusals():
    problem = make()
    with pytest.raises(ValueError, match="'gd' has no step size"):
        drago.tune(problem, "gd")
    with pytest.raises(ValueError, match="diverges with every step size"):
        drago.tune(problem, "sgd", grid=[1e4], seeds=[0])
    with pytest.raises(ValueError, match="grid"):
        drago.tune(problem, "sgd", grid=[0.0])
    with pytest.raises(ValueError, match="at least one"):
        drago.tune(problem, "sgd", grid=[])
    with pytest.raises(ValueError, match="spectral"):
        drago.tune(make(uncertainty=drago.Chi2Ball(1.0)), "lsvrg")
