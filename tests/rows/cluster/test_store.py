"""Rows on a cluster against the same rows in memory: every answer is judged in memory."""

import collections
import contextlib
import itertools

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

import drago
from cluster_cases import SETS, TOL, D, N, data, in_chunks, same_bits, terms
from drago.loop.loop import Loop

da = pytest.importorskip("dask.array", reason="needs dask and distributed")
distributed = pytest.importorskip("distributed", reason="needs dask and distributed")

from drago.rows.cluster import core, programs  # noqa: E402

LOSSES = ("squared", "huber", "logistic", "multinomial")
NO_CLIENT = "there is no Dask client"


def both(loss, name, divergence="auto", chunk=700, **more):
    """The problem on the current cluster, and in memory."""
    X, y, groups = data(loss)
    groups = groups if name == "groups" else None
    given = terms(loss, name, divergence, **more)
    dX, dy, dgroups = in_chunks(X, y, groups, chunk)
    remote = drago.DROProblem(dX, dy, groups=dgroups, **given)
    return remote, drago.DROProblem(X, y, groups=groups, **given)


def divergences():
    for loss, name in itertools.product(LOSSES, SETS):
        own = SETS[name].own_divergence is not None
        for divergence in ("auto",) if own else ("chi2", "kl"):
            yield loss, name, divergence


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
@pytest.mark.parametrize(("loss", "name", "divergence"), list(divergences()))
def test_answers_are_certified_in_memory(loss, name, divergence):
    """By threads of this process, which run the very tasks of a cluster."""
    remote, memory = both(loss, name, divergence)
    result = drago.solve(remote, tol=TOL)
    assert result.status == "optimal"
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL
    weights = np.asarray(result.dual_weights)
    found = drago.certify(memory, result.dual_coef, result.dual_intercept, weights)
    assert found.dual >= result.dual - 1e-9 * abs(result.dual)


CASES = [
    ("logistic", "cvar", "kl"),
    ("huber", "esrm", "chi2"),
    pytest.param("squared", "cvar", "chi2", marks=pytest.mark.slow),
    pytest.param("multinomial", "chi2 ball", "auto", marks=pytest.mark.slow),
]


# There is a client all the while, which older versions of Dask see.
@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")
@pytest.mark.parametrize(("loss", "name", "divergence"), CASES)
def test_workers_give_the_bits_of_threads(client, loss, name, divergence):
    """The same partition, so the same sums in the same order, whoever takes them."""
    remote, memory = both(loss, name, divergence)
    result = drago.solve(remote, tol=TOL)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "default_client", _no_client)
        with pytest.warns(UserWarning, match=NO_CLIENT):
            other = both(loss, name, divergence)[0]
        again = drago.solve(other, tol=TOL)
    same_bits(result, again)


def _no_client():
    raise ValueError("no clients found")


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_bits_do_not_depend_on_the_number_of_workers(cluster_of, loss):
    """All clusters at once: one problem after the other goes to each of them."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(distributed.Client(cluster_of(n_workers), set_as_default=False))
            for n_workers in (1, 2, 4)
        ]
        for name, uncertainty in SETS.items():
            own = uncertainty.own_divergence is not None
            found = set()
            for client in clients:
                with client.as_current():
                    remote, memory = both(loss, name, "auto" if own else "kl")
                    result = drago.solve(remote, tol=TOL)
                    weights = result.dual_weights.compute()
                found.add((result.coef.tobytes(), result.gap, result.n_iter, weights.tobytes()))
            assert len(found) == 1
            assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
@pytest.mark.parametrize(
    ("loss", "name", "divergence", "settings"),
    [
        ("squared", "cvar", "chi2", {}),
        ("logistic", "simplex", "kl", {"block_size": 600}),
        ("huber", "esrm", "chi2", {"block_size": 1000}),
        ("multinomial", "groups", "chi2", {"block_size": 1000}),
    ],
)
def test_drago_takes_its_blocks_from_all_parts(loss, name, divergence, settings):
    remote, memory = both(loss, name, divergence)
    result = drago.solve(remote, drago.Drago(**settings), tol=1e-4)
    assert result.status == "optimal"
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= 1e-4


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_drago_keeps_the_coefficients_in_a_ball():
    remote, memory = both("logistic", "cvar", "chi2", constraint=drago.L2Ball(0.5))
    result = drago.solve(remote, tol=1e-4)
    assert np.linalg.norm(result.coef) <= 0.5 * (1 + 1e-9)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= 1e-4


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_drago_goes_on_from_a_checkpoint(tmp_path):
    remote, _ = both("squared", "cvar", "chi2")
    path, method = tmp_path / "solve.ckpt", drago.Drago(block_size=600)
    whole = drago.solve(remote, method, tol=1e-5)
    with pytest.warns(ConvergenceWarning):
        drago.solve(remote, method, tol=1e-5, max_iter=9, checkpoint=path, checkpoint_every=0)
    same_bits(whole, drago.solve(remote, method, tol=1e-5, checkpoint=path))


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_the_mean_is_what_scikit_learn_finds():
    X, y, _ = data("logistic")
    mu = 1e-2
    dX, dy, _ = in_chunks(X, y)
    given = {"uncertainty": drago.CVaR(1.0), "l2_reg": mu, "fit_intercept": True}
    result = drago.solve(drago.DROProblem(dX, dy, loss="logistic", **given), tol=1e-13)
    peer = LogisticRegression(C=1.0 / (mu * N), tol=1e-12, max_iter=10000).fit(X, y)
    np.testing.assert_allclose(result.coef, peer.coef_[0], atol=1e-6)
    np.testing.assert_allclose(result.intercept, peer.intercept_[0], atol=1e-6)
    X, y, _ = data("squared")
    dX, dy, _ = in_chunks(X, y)
    result = drago.solve(drago.DROProblem(dX, dy, loss="squared", **given), tol=1e-13)
    peer = Ridge(alpha=mu * N, tol=1e-14).fit(X, y)
    np.testing.assert_allclose(result.coef, peer.coef_, atol=1e-6)
    np.testing.assert_allclose(result.intercept, peer.intercept_, atol=1e-6)


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
@pytest.mark.parametrize(
    ("loss", "name", "witnesses", "most"),
    [
        ("squared", "cvar", 8192, 3.0),
        ("logistic", "cvar", 8192, 3.0),
        ("logistic", "esrm", 8192, 3.5),
        ("multinomial", "esrm", 8192, 4.0),
        ("multinomial", "mean", 8192, 2.5),
        ("squared", "kl ball", 8192, 2.5),
        # One row in twenty, which tell little of heavy tails.
        ("squared", "kl ball", 150, 2.5),
        ("huber", "kl ball", 150, 2.5),
    ],
)
def test_an_iteration_takes_at_most_four_rounds(monkeypatch, loss, name, witnesses, most):
    """On the way from the trivial model to the optimum, certificates and set-up apart.

    Rounds do not depend on the machine. `most` is about half a round more than was needed: a round
    more for each trial, or a search that takes longer, is too many.
    """
    monkeypatch.setattr(core, "_WITNESSES", witnesses)
    remote, memory = both(loss, name, "auto" if "ball" in name else "chi2")
    observe, spent, last = Loop.observe, [0], [0]

    def counted(self, iterate):
        if not self.quiet:
            spent[0] += remote.rows.n_rounds - last[0] if iterate.n_iter else 0
        try:
            observe(self, iterate)
        finally:
            if not self.quiet:
                last[0] = remote.rows.n_rounds

    monkeypatch.setattr(Loop, "observe", counted)
    result = drago.solve(remote, drago.LBFGS(metric="auto"), tol=TOL)
    assert result.n_rounds > 0
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL
    assert spent[0] <= most * result.n_iter


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
@pytest.mark.parametrize(
    ("loss", "name", "divergence"),
    [
        ("squared", "cvar", "chi2"),
        ("logistic", "cvar", "kl"),
        ("huber", "simplex", "kl"),
        ("logistic", "chi2 ball", "auto"),
        ("squared", "kl ball", "auto"),
    ],
)
def test_a_visit_reads_the_rows_once(loss, name, divergence, monkeypatch):
    """The losses in one round, the weights and the gradient in the next: the search for the weights
    takes no round of its own, or one for a chi2 ball, and nothing is computed twice."""
    remote, memory = both(loss, name, divergence)
    rows, done = remote.rows, collections.Counter()
    rng = np.random.default_rng(1)
    oracle, w, b = remote.dual_oracle(), rng.normal(size=(D, 1)), np.zeros(1)
    for _ in range(2):  # the second guess knows how far off the first one was
        remote.visit(w, b, oracle)
        w = w + 1e-3 * rng.normal(size=w.shape)
    run = programs.Program.run

    def counted(self, part, *given):
        done.update(getattr(o, "__name__", o) for o, *_ in self.instructions)
        return run(self, part, *given)

    monkeypatch.setattr(programs.Program, "run", counted)
    before, parts = rows.n_rounds, len(rows.parts)
    ev, q, gradient = remote.visit(w, b, oracle)
    remote.primal(w, ev.losses, q)
    assert rows.n_rounds - before <= (3 if name == "chi2 ball" else 2)
    assert done["evaluated"] == parts
    assert done["weigh"] + done["soft"] == parts
    assert done["gradient_after"] + done["gradient"] == parts
    here = memory.visit(w, b, memory.dual_oracle())
    np.testing.assert_allclose(gradient.w, here.gradient.w, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_weights_baseline_sparse_and_float32():
    import scipy.sparse as sp

    X, y, _ = data("squared")
    rng = np.random.default_rng(3)
    weight, baseline = rng.uniform(0.5, 2.0, size=N), rng.normal(size=N)
    given = terms("squared", "cvar", "chi2")
    memory = drago.DROProblem(X, y, sample_weight=weight, baseline=baseline, **given)
    dX, dy, _ = in_chunks(X, y)
    remote = drago.DROProblem(
        dX, dy, sample_weight=da.from_array(weight, chunks=400), baseline=baseline, **given
    )
    result = drago.solve(remote, tol=TOL)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL

    sparse = np.where(rng.uniform(size=X.shape) < 0.5, X, 0.0)
    memory = drago.DROProblem(sp.csr_matrix(sparse), y, **given)
    blocks = da.from_array(sparse, chunks=(700, -1)).map_blocks(sp.csr_matrix)
    result = drago.solve(drago.DROProblem(blocks, dy, **given), tol=TOL)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL

    memory = drago.DROProblem(X.astype(np.float32), y, **given)
    result = drago.solve(drago.DROProblem(dX.astype(np.float32), dy, **given), tol=TOL)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_certify_losses_and_weights_are_those_in_memory():
    remote, memory = both("logistic", "cvar", "chi2")
    coef = np.array([0.5, -0.2, 0.1, 0.3])
    losses = remote.losses(coef, 0.1)
    np.testing.assert_allclose(losses.compute(), memory.losses(coef, 0.1), rtol=1e-14)
    weights = remote.worst_case_weights(losses)
    np.testing.assert_allclose(
        weights.compute(), memory.worst_case_weights(losses.compute()), atol=1e-12 / N
    )
    for given in (weights, weights.compute()):
        found = drago.certify(remote, coef, 0.1, given)
        here = drago.certify(memory, coef, 0.1, weights.compute())
        np.testing.assert_allclose([found.primal, found.gap], [here.primal, here.gap], rtol=1e-6)
    assert remote.objective(coef, 0.1) == pytest.approx(memory.objective(coef, 0.1), rel=1e-13)


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_frames_chunks_of_unknown_size_and_unequal_blocks():
    dd = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    import pandas as pd

    X, y, _ = data("squared")
    given = terms("squared", "cvar", "chi2")
    memory = drago.DROProblem(X, y, **given)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
    table = dd.from_pandas(frame, npartitions=6)
    for dX, dy in (
        (table[list("abcd")], table["y"]),
        (table[list("abcd")].to_dask_array(), table["y"].to_dask_array()),
        (da.from_array(X, chunks=(1000, 2)), da.from_array(y, chunks=270)),
        (da.from_array(X, chunks=(1000, 4)), y),
    ):
        result = drago.solve(drago.DROProblem(dX, dy, **given), tol=TOL)
        assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL


@pytest.mark.filterwarnings(f"ignore:{NO_CLIENT}")
def test_errors_say_what_to_do():
    dd = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    import pandas as pd

    X, y, _ = data("squared")
    dX, dy, _ = in_chunks(X, y)
    with pytest.raises(ValueError, match="3000 rows, but has 2999"):
        drago.DROProblem(dX, dy[:-1])
    with pytest.raises(ValueError, match="y is missing"):
        drago.DROProblem(dX)
    with pytest.raises(ValueError, match="positive on all rows"):
        drago.DROProblem(dX, dy, sample_weight=da.zeros(N, chunks=700))
    with pytest.raises(ValueError, match="NaN"):
        drago.DROProblem(da.where(dX > 2.0, np.nan, dX), dy)
    frame = pd.DataFrame({"a": [1.0, 2.0] * 5, "b": list("xy") * 5})
    table = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(ValueError, match=r"column 'b'.*get_dummies"):
        drago.DROProblem(table, np.arange(10.0))
    problem = drago.DROProblem(dX, dy)
    with pytest.raises(ValueError, match="cannot go to device"):
        drago.solve(problem, device="cpu")
    with pytest.raises(ValueError, match="single rows"):
        drago.solve(problem, "sgd")


def test_parts_are_merged_and_split():
    from drago.rows.cluster import open as opening

    class Blocks:
        def __init__(self, sizes):
            self.facts = [opening.Facts(n, (4,), 32 * n, 4 * n, False, None, 0, 0) for n in sizes]
            self.n, self.n_bytes = sum(sizes), 32 * sum(sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "RULE", opening._PartRule(parts=1, least=1, most=3200))
        assert opening._ends(Blocks([40, 40, 40, 250, 10, 10])) == [80, 120, 203, 286, 380, 390]
        assert opening._bundles([(0, 10), (10, 20), (20, 30)], 2) == [
            [(0, 10), (10, 20)],
            [(20, 30)],
        ]
