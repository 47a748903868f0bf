"""The oracles on tensors, against those on arrays and slow twins."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import math
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import cases
import drago
import twins
from drago.oracles import search, thresholds
from drago.oracles.pools import _Pools
from drago.oracles.rounds import arrays, rows
from drago.terms.uncertainty import SpectralSet
from drago.torch_engine import TensorOracle

GROUPED = [
    ("grouped_cvar", "chi2"),
    ("grouped_cvar", "kl"),
    ("grouped_esrm", "chi2"),
    ("grouped_chi2_ball", "chi2"),
    ("grouped_kl_ball", "kl"),
]
PAIRS = [*cases.PAIRS, ("density", "chi2"), ("density", "kl")]
SPECTRAL = ("extremile", "esrm", "spectrum", "density")
all_pairs = pytest.mark.parametrize(("name", "divergence"), PAIRS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def build(name):
    if name == "density":
        return drago.Spectrum(density=lambda u: 3.0 * u * u)
    if name.startswith("grouped_"):
        return drago.Grouped(cases.SETS[name.removeprefix("grouped_")][0])
    return cases.SETS[name][0]


def tensor(x, **settings):
    return None if x is None else torch.as_tensor(np.asarray(x), **settings)


def both(oracle, u, c, p=None, groups=None):
    """The weights of the tensor oracle, and those of the array oracle."""
    q = oracle.weights(tensor(u), c, tensor(p), tensor(groups))
    nominal = np.full(u.size, 1.0 / u.size) if p is None else p
    on_arrays = oracle.uncertainty.oracle(nominal, oracle.divergence, groups)
    return q.numpy(), on_arrays.weights(u, c)


def assert_close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * expected.max())


WAYS = ("few", "many", "most")


def go(way, patch):
    """All rows at once, as for a small batch; sums in sorted order and joined pools, as for a large
    one; or a search without a sort, as for the largest.
    """
    if way != "few":
        patch.setattr(thresholds, "_ENTRIES", 0)
    if way == "most":
        patch.setitem(search._LEAST_ROWS, "cpu", 1)
        patch.setattr(arrays, "_SAMPLE", 4)
        patch.setattr(rows, "_CHUNK", 8)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    go(request.param, monkeypatch)
    return request.param


def loss_vectors(n, rng):
    x = rng.normal(size=n)
    yield x
    yield 1e8 * x
    yield 1e-8 * x
    yield rng.integers(0, 4, size=n).astype(float)
    yield 1e8 + rng.integers(0, 4, size=n)
    yield np.full(n, 0.7)
    far = x.copy()
    far[rng.integers(n)] = 1e8
    yield far


# ------------------------------------------------------------------------ the weights themselves


@pytest.mark.parametrize(
    ("way", "name", "divergence"), cases.thinned(WAYS, PAIRS, keep=3), indirect=["way"]
)
def test_agrees_with_the_oracle_on_arrays(name, divergence, way):
    rng = np.random.default_rng(1)
    oracle = TensorOracle(build(name), divergence)
    for n in (1, 2, 3, 20):
        for k, u in enumerate(loss_vectors(n, rng)):
            p = cases.nominal("random", n, rng) if (k + n) % 2 else None
            for c in (0.0, 1e-12, 0.1, 1e6)[k % 2 :: 2]:
                assert_close(*both(oracle, u, c, p))


@pytest.mark.thinned(3)
@all_pairs
def test_agrees_with_the_oracle_on_arrays_for_a_thousand_rows(name, divergence):
    rng = np.random.default_rng(2)
    oracle = TensorOracle(build(name), divergence)
    for k, u in enumerate(loss_vectors(1000, rng)):
        p = cases.nominal("random", 1000, rng) if k % 2 else None
        for c in (0.0, 1e-12, 1e-4, 0.3, 1e6)[k % 2 :: 2]:
            assert_close(*both(oracle, u, c, p))


def hard_to_pool(n, rng):
    """Losses whose pools are long, nested or decided far away."""
    yield rng.standard_cauchy(size=n)
    yield np.repeat(rng.normal(size=n // 100 + 1), 100)[:n]
    yield np.where(np.arange(n) < n // 2, -3.0 * np.arange(n) / n, 0.0)
    yield np.cumsum(2.0 ** rng.integers(-60, 3, size=n))
    yield rng.normal(size=n) * 10.0 ** rng.integers(-12, 3, size=n)
    yield np.sqrt(np.arange(n) / n)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
@pytest.mark.parametrize("name", SPECTRAL)
def test_pools_of_many_rows(name, divergence):
    rng = np.random.default_rng(3)
    oracle = TensorOracle(build(name), divergence)
    for k, u in enumerate(hard_to_pool(1200, rng)):
        p = cases.nominal("random", u.size, rng) if k % 2 else None
        for c in (0.0, 1e-6, 0.1, 3.0):
            assert_close(*both(oracle, u, c, p))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_pools_of_a_hundred_thousand_rows(divergence):
    """The running sums of the array oracle have lost a digit here."""
    rng = np.random.default_rng(4)
    n = 100_000
    oracle = TensorOracle(drago.Extremile(2.5), divergence)
    pools = list(hard_to_pool(n, rng))
    for u, c in ((pools[0], 1.0), (pools[5], 0.1)):
        p = cases.nominal("random", n, rng)
        assert_close(*both(oracle, u, c, p), rtol=1e-11)
    q, expected = both(oracle, pools[2], 0.5)
    assert_close(q, expected, rtol=1e-11)
    # A sum by halves has log2(n) < 17 roundings, and there are two: of the masses, of the weights.
    assert abs(math.fsum(q) - 1.0) <= 17 * np.finfo(float).eps


@pytest.mark.parametrize("name", ["cvar", "simplex", "chi2_ball", "kl_ball"])
def test_thresholds_of_a_hundred_thousand_rows(name):
    rng = np.random.default_rng(5)
    u = rng.standard_cauchy(size=100_000)
    for c in (0.0, 0.2):
        assert_close(*both(TensorOracle(build(name)), u, c), rtol=1e-11)


def test_pools_keep_their_mass():
    """A witness without another oracle: the definition of the pools."""
    rng = np.random.default_rng(6)
    u = torch.from_numpy(np.sort(rng.normal(size=64)))
    p = torch.full((64,), 1 / 64, dtype=torch.float64)
    sigma = torch.from_numpy(np.diff(np.linspace(0, 1, 65) ** 3))
    for linear in (True, False):
        pools = _Pools(u, p, sigma, 0.3, linear)
        q = p * pools.ratios()
        first, last = pools.first[0], pools.last[0]
        v = u - 0.3 * (q / p if linear else torch.log(q / p))
        assert (v.diff() >= -1e-12).all()
        starts = first.unique().tolist()
        assert 1 < len(starts) < 64
        for start in starts:
            end = int(last[start])
            assert (first[start:end] == start).all() and (last[start:end] == end).all()
            torch.testing.assert_close(q[start:end].sum(), sigma[start:end].sum())
            torch.testing.assert_close(v[start:end], v[start].expand(end - start))


# --------------------------------------------------------------------------- adversarial numbers


FLOATS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, -1e-300, 1e8, 1e150, -1e150, 1.0 + 2**-52]),
    st.floats(-1e150, 1e150, allow_subnormal=False),
    st.floats(-10, 10, allow_subnormal=False),
    st.integers(-3, 3).map(float),
)
ADVERSARIES = [
    *((drago.CVaR(t), ("cvar", t)) for t in (1.0, 0.7, 0.25, 1e-4)),
    (drago.Simplex(), ("simplex",)),
    *((drago.Extremile(r), ("extremile", r)) for r in (1.0, 2.5, 30.0)),
    *((drago.ESRM(g), ("esrm", g)) for g in (0.0, 1e-3, 4.0, 60.0)),
    (drago.Spectrum(integral=cases.kink), ("spectrum", cases.kink)),
    *((drago.Chi2Ball(r), ("chi2_ball", r)) for r in (0.0, 1e-3, 0.1, 30.0)),
    *((drago.KLBall(r), ("kl_ball", r)) for r in (0.0, 1e-3, 0.1, 30.0)),
]


@st.composite
def adversaries(draw):
    n = draw(st.integers(1, 9))
    u = np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)))
    weights = np.array(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    spread = np.ptp(u)
    relative = draw(st.sampled_from([1e3, 1.0, 0.1, 1e-3, 1e-6, 1e-9, 1e-13, 0.0]))
    return u, weights / weights.sum(), relative * (spread if spread > 1e-290 else 1.0)


@settings(max_examples=150)
@given(
    adversaries(),
    st.sampled_from(ADVERSARIES),
    st.sampled_from(cases.DIVERGENCES),
    st.sampled_from(WAYS),
)
def test_adversarial_numbers(adversary, pair, divergence, way):
    u, p, c = adversary
    uncertainty, described = pair
    divergence = uncertainty.own_divergence or divergence
    with pytest.MonkeyPatch.context() as patch:
        go(way, patch)
        q = TensorOracle(uncertainty, divergence).weights(tensor(u), float(c), tensor(p)).numpy()
    assert np.isfinite(q).all()
    radius = described[1] if uncertainty.own_divergence else 0.0
    assert twins.feasibility(described, q, p) <= 1e-12 * (1.0 + radius)
    best = twins.worst_case_extended(described, u, c, divergence, p)
    centred, scale = twins._long(u) - u.max(), c + np.ptp(u) + 1e-300
    short = twins.objective(centred, c, divergence, p, best)
    short -= twins.objective(centred, c, divergence, p, q)
    assert short <= 1e-12 * scale


# ------------------------------------------------------------------------------- what is given


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), [*PAIRS, *GROUPED])
def test_rows_without_weight_take_no_part(name, divergence, way):
    rng = np.random.default_rng(7)
    uncertainty = build(name)
    oracle = TensorOracle(uncertainty, divergence)
    p = cases.nominal("random", 14, rng)
    p[[0, 5, 6, 13]] = 0.0
    p /= p.sum()
    live = p > 0
    groups = np.arange(14) % 3 if name.startswith("grouped") else None
    kept = None if groups is None else groups[live]
    for c in (0.0, 0.2):
        u = rng.normal(size=14)
        expected = uncertainty.oracle(p[live], divergence, kept).weights(u[live], c)
        for far in (1e9, -1e9, np.nan, np.inf):
            u[~live] = far
            q = oracle.weights(tensor(u), c, tensor(p), tensor(groups)).numpy()
            assert_close(q[live], expected)
            assert (q[~live] == 0).all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), GROUPED)
def test_groups(name, divergence, way):
    """Any integers are labels; losses in eighths, so that means of groups are exact."""
    rng = np.random.default_rng(8)
    oracle = TensorOracle(build(name), divergence)
    for n in (1, 2, 32):
        u = rng.integers(-80, 80, size=n) / 8.0
        groups = rng.integers(0, 4, size=n)
        _, dense = np.unique(groups, return_inverse=True)
        labels = np.array([-7, 10**12, 3, 0])[groups]
        for p in (None, cases.nominal("random", n, rng)):
            for c in (0.01, 0.5, 20.0):
                _, expected = both(oracle, u, c, p, dense)
                assert_close(
                    oracle.weights(tensor(u), c, tensor(p), tensor(labels)).numpy(), expected
                )


@pytest.mark.thinned(3)
@all_pairs
def test_float32_losses_are_as_exact_as_they_can_be(name, divergence, way):
    """The weights of the rounded losses, rounded."""
    rng = np.random.default_rng(9)
    oracle = TensorOracle(build(name), divergence)
    u = rng.normal(size=50).astype(np.float32)
    for c in (0.0, 1e-3, 0.5):
        q = oracle.weights(torch.from_numpy(u), c)
        assert q.dtype == torch.float32
        _, expected = both(oracle, u.astype(float), c)
        assert_close(q.numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("way", "name", "divergence"), cases.thinned(WAYS, PAIRS, keep=3), indirect=["way"]
)
def test_where_there_is_no_float64(name, divergence, way):
    """Some devices have float32 only: then everything is computed in it."""
    oracle = TensorOracle(build(name), divergence)
    for u in list(loss_vectors(40, np.random.default_rng(12)))[:4]:
        for c in (0.0, 0.3 * np.abs(u).max()):
            _, expected = both(oracle, u, float(c))
            q = oracle.exact_weights(tensor(u).float(), float(c), None, None)
            assert q.dtype == torch.float32
            assert_close(q.numpy(), expected, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_single(dtype):
    q = TensorOracle("cvar").weights(torch.arange(20, dtype=dtype), 0.5)
    assert q.dtype == torch.float32
    assert float(q.sum()) == pytest.approx(1.0)


@all_pairs
def test_the_cost_may_be_a_tensor(name, divergence):
    oracle = TensorOracle(build(name), divergence)
    u = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_number = oracle.weights(u, 0.3)
    by_tensor = oracle.weights(u, torch.tensor(0.3, dtype=torch.float64))
    torch.testing.assert_close(by_tensor, by_number, rtol=1e-14, atol=0.0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), [*PAIRS, *GROUPED])
def test_what_is_not_finite_gives_nan(name, divergence, way):
    groups = torch.tensor([0, 0, 1, 1]) if name.startswith("grouped") else None
    oracle = TensorOracle(build(name), divergence)
    for bad in (np.nan, np.inf, -np.inf):
        for c in (0.0, 0.1):
            u = torch.tensor([1.0, bad, 3.0, 2.0])
            assert oracle.weights(u, c, groups=groups).isnan().all()


def test_distance_is_the_divergence():
    rng = np.random.default_rng(10)
    p, q = cases.nominal("random", 9, rng), cases.nominal("random", 9, rng)
    for name in cases.DIVERGENCES:
        found = TensorOracle("cvar", name).distance(tensor(q), tensor(p))
        assert float(found) == pytest.approx(twins.divergence_value(name, q, p), rel=1e-12)
        found = TensorOracle("cvar", name).distance(tensor(q))
        assert float(found) == pytest.approx(twins.divergence_value(name, q), rel=1e-12)


def test_tables_are_kept_and_do_not_travel():
    oracle = TensorOracle(drago.Spectrum(integral=cases.kink))
    u = torch.randn(7)
    q = oracle.weights(u, 0.1)
    (table,) = oracle._spectra._tables.values()
    oracle.weights(u, 0.1)
    assert list(map(id, oracle._spectra._tables.values())) == [id(table)]
    other = pickle.loads(pickle.dumps(oracle))
    assert not other._spectra._tables
    torch.testing.assert_close(other.weights(u, 0.1), q, rtol=0, atol=0)


def test_the_set_is_copied():
    given = drago.CVaR(0.5)
    oracle = TensorOracle(given)
    given.set_params(tail_fraction=1.0)
    assert oracle.uncertainty == drago.CVaR(0.5)
    with pytest.raises(AttributeError, match="does not change"):
        oracle.uncertainty.tail_fraction = 0.1


def test_refusals():
    class Own:
        def worst_case(self, u, c, divergence, p):
            return p

        def q_max(self, p):
            return 1.0

    with pytest.raises(TypeError, match=r"takes the built-in sets, but .*Own"):
        TensorOracle(Own())
    with pytest.raises(TypeError, match=r"takes the built-in sets, but .*Own"):
        TensorOracle(drago.Grouped(Own()))

    class OwnSpectrum(SpectralSet):
        pass

    with pytest.raises(TypeError, match="OwnSpectrum"):
        TensorOracle(OwnSpectrum())
    with pytest.raises(ValueError, match="its own divergence, 'kl'"):
        TensorOracle("kl_ball", "chi2")
    with pytest.raises(ValueError, match="must be one of 'cvar'"):
        TensorOracle("cvarr")
    with pytest.raises(ValueError, match="give groups="):
        TensorOracle(drago.Grouped()).weights(torch.ones(3), 0.1)


# ------------------------------------------------------------------------- graphs and devices


class NoLook(TorchDispatchMode):
    """Fails where a value is read back."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "unique"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), [*PAIRS, *GROUPED])
def test_no_value_is_read_back(name, divergence, way):
    u = torch.randn(9, dtype=torch.float64)
    groups = torch.arange(9) % 2 if name.startswith("grouped") else None
    p = torch.full((9,), 1 / 9, dtype=torch.float64)
    oracle = TensorOracle(build(name), divergence)
    for nominal in (None, p):
        if name == "spectrum" and nominal is not None:
            continue  # says so: a function of arrays has to be asked
        for c in (0.0, 0.1):
            with NoLook():
                oracle.weights(u, c, nominal, groups)


def test_the_watch_for_values_sees_them():
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoLook():
        torch.ones(()).item()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # parts of torch that it uses
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "divergence", "entries"),
    [("extremile", "kl", 0), ("kl_ball", "kl", 1 << 15)],
)
def test_compiles_to_one_graph(name, divergence, entries, monkeypatch):
    monkeypatch.setattr(thresholds, "_ENTRIES", entries)
    oracle = TensorOracle(build(name), divergence)
    torch._dynamo.reset()
    compiled = torch.compile(oracle.weights, backend="eager", fullgraph=True)
    u = torch.randn(12, dtype=torch.float64)
    torch.testing.assert_close(compiled(u, 0.2), oracle.weights(u, 0.2), rtol=0, atol=0)


@needs_cuda
@pytest.mark.parametrize(("name", "divergence"), [*PAIRS, *GROUPED])
def test_cuda_agrees_with_the_processor(name, divergence):
    rng = np.random.default_rng(11)
    oracle = TensorOracle(build(name), divergence)
    grouped = name.startswith("grouped")
    for n in (1, 3, 200, 3000):
        groups = torch.arange(n) % 4 if grouped else None
        p = tensor(cases.nominal("random", n, rng))
        # Elsewhere the means of groups are as good as tied: rounding decides.
        vectors = list(loss_vectors(n, rng))[: 1 if grouped else None]
        for u in map(tensor, vectors):
            for c in (0.0, 0.1):
                labels = groups.cuda() if grouped else None
                found = oracle.weights(u.cuda(), c, p.cuda(), labels)
                assert found.is_cuda
                assert_close(found.cpu().numpy(), oracle.weights(u, c, p, groups).numpy())


@needs_cuda
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_cuda_graph(name, divergence):
    oracle = TensorOracle(build(name), divergence)
    for n in (50, 5000):
        for c in (0.0, 0.1):
            u = torch.randn(n, device="cuda")
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # tables are made before the recording
                oracle.weights(u, c)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                q = oracle.weights(u, c)
            u.copy_(torch.randn(n, device="cuda"))
            graph.replay()
            torch.testing.assert_close(q, oracle.weights(u, c), rtol=0, atol=0)


@needs_cuda
def test_deterministic_algorithms_on_cuda():
    u, p = torch.randn(5000, device="cuda"), torch.rand(5000, device="cuda")
    groups = torch.arange(5000, device="cuda") % 7
    torch.use_deterministic_algorithms(True)
    try:
        for name, divergence in (*PAIRS, *GROUPED):
            if name != "spectrum":
                labels = groups if name.startswith("grouped") else None
                TensorOracle(build(name), divergence).weights(u, 0.1, p / p.sum(), labels)
    finally:
        torch.use_deterministic_algorithms(False)
