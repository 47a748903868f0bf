"""The kernels of KL balls and of pools, against the same in torch and the oracles for arrays.

They run on a CUDA device, or in Triton's interpreter where ``TRITON_INTERPRET=1``.
"""

# ruff: noqa: E402  (nothing below can be imported without torch and triton)

import importlib.util
import math
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available() and not INTERPRETED
if not (CUDA or INTERPRETED):
    pytest.skip("neither a CUDA device nor TRITON_INTERPRET=1", allow_module_level=True)

import drago
import drago.kernels
from drago.oracles import pool_launch, pools, search, thresholds
from drago.oracles.search import KL_BALL, launch
from drago.oracles.spectra import Spectra
from drago.terms.divergences import as_divergence

DEVICE = "cuda" if CUDA else "cpu"
SMALL = {
    "_BLOCK": 16,
    "_STEPS": (2, 4, 16),
    "_WAYS": 4,
    "_MANY_WAYS": 8,
    "_LARGE": 32,
    "_TILE": 8,
    "_PAIRS": 2,
}
RADII = (1e-12, 1e-3, 0.3, 20.0)
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device")


def needs_kernels():
    """The compiled ones, of arrays."""
    try:
        drago.kernels.capped_chi2  # noqa: B018
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """In the interpreter, tiles so small that a few rows need several; and it works."""
    if CUDA:
        return
    from triton.runtime import interpreter

    monkeypatch.setattr(launch, "_LANES", 16)
    for name, value in SMALL.items():
        monkeypatch.setattr(pool_launch, name, value)
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        # As written there it fails with the newest NumPy.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def tensor(x):
    return torch.as_tensor(np.asarray(x), dtype=torch.float64, device=DEVICE)


def assert_close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * expected.max())


def shares(n, rng):
    """Unequal, some of them tiny or 0."""
    p = rng.exponential(size=n) ** 2 + 1e-5
    p[rng.random(n) < 0.2] = 0.0
    p[rng.integers(n)] = 1.0
    return p / p.sum()


def vectors(n, rng):
    x = rng.normal(size=n)
    yield x
    yield 1e8 * x
    yield 1e-8 * x
    yield rng.integers(0, 4, size=n).astype(float)
    yield 1e8 + 2.0**-26 * rng.integers(0, 4, size=n)
    yield np.full(n, 0.7)
    yield rng.standard_cauchy(size=n)
    yield x * 10.0 ** rng.integers(-12, 9, size=n)
    yield np.where(rng.random(n) < 0.3, 1e8, x)


# ---------------------------------------------------------------------------------- KL balls


def ball(u, p, c, radius, memory=None):
    losses = tensor(u)
    q = torch.empty_like(losses)
    with np.errstate(all="ignore"):
        launch.search(KL_BALL, losses, None if p is None else tensor(p), c, radius, q, memory)
    return q.cpu().numpy()


def ball_by_sums(u, p, c, radius):
    """On the processor; rows of weight 0 are left out."""
    nominal = np.full(u.size, 1.0 / u.size) if p is None else p
    live = nominal > 0
    everywhere = np.zeros(u.size)
    rows = torch.from_numpy(u[live]), torch.from_numpy(nominal[live])
    everywhere[live] = thresholds.kl_ball(*rows, c, radius).numpy()
    return everywhere


def divergence(q, p):
    ratio = q[p > 0] / p[p > 0]
    logs = np.log(np.where(ratio > 0, ratio, 1.0))
    return float((p[p > 0] * (ratio * logs - (ratio - 1.0))).sum())


@pytest.mark.parametrize("n", (1, 2, 3, 300, 5000) if CUDA else (1, 2, 3, 41))
def test_kl_ball(n):
    rng = np.random.default_rng(n)
    for k, u in enumerate(vectors(n, rng)):
        p = shares(n, rng) if (k + n) % 2 else None
        given = u.copy()
        if p is not None:
            given[p == 0] = (np.nan, np.inf, -np.inf, 1e300)[k % 4]
        for j, c in enumerate((0.0, 1e-12, 1e-3, 1.0, 1e6)):
            radius = RADII[(j + k) % 4]
            q = ball(given, p, c, radius)
            assert_close(q, ball_by_sums(u, p, c, radius))
            assert p is None or (q[p == 0] == 0).all()
            assert abs(math.fsum(q) - 1.0) <= 1e-12


def test_kl_ball_as_for_arrays():
    needs_kernels()
    rng = np.random.default_rng(0)
    for k, u in enumerate(vectors(60, rng)):
        p = rng.dirichlet(np.ones(60)) if k % 2 else np.full(60, 1 / 60)
        for c in (0.0, 1e-3, 1.0):
            radius = RADII[(k + int(c)) % 4]
            oracle = drago.KLBall(radius)._oracle(p, as_divergence("kl"), None)
            assert_close(ball(u, p, c, radius), oracle.weights(u, c), 1e-11)


@pytest.mark.parametrize("radius", (1e-10, 1e-6, 1e-2, 1.0))
def test_the_divergence_is_the_radius(radius):
    rng = np.random.default_rng(1)
    for u in (rng.normal(size=90), rng.lognormal(size=90), 1e6 + rng.normal(size=90)):
        for p in (np.full(90, 1 / 90), rng.dirichlet(np.ones(90))):
            found = divergence(ball(u, p, 0.0, radius), p)
            assert found == pytest.approx(radius, rel=1e-9)


def test_few_passes_and_fewer_from_the_last_answer():
    rng = np.random.default_rng(2)
    u = rng.lognormal(size=20_000 if CUDA else 90)
    for radius in (1e-4, 0.1, 1.0):
        memory = search.new_memory(DEVICE)
        ball(u, None, 1e-3, radius, memory)
        assert memory[2] <= 8
        for _ in range(2):
            u = u * (1.0 + 1e-3 * rng.normal(size=u.size))
            assert_close(ball(u, None, 1e-3, radius, memory), ball_by_sums(u, None, 1e-3, radius))
        scale = float(memory[0])
        assert_close(ball(u, None, 1e-3, radius, memory), ball_by_sums(u, None, 1e-3, radius))
        assert memory[2] == 1
        assert float(memory[0]) == pytest.approx(scale, rel=1e-12)
        assert float(memory[1]) == pytest.approx(0.0, abs=1e-12 * scale)
        for useless in (1e-300, 1e300, 0.0, -1.0):
            memory[0] = useless
            assert_close(ball(u, None, 1e-3, radius, memory), ball_by_sums(u, None, 1e-3, radius))


def test_kl_ball_of_what_is_not_finite():
    for bad in (np.nan, np.inf, -np.inf):
        u = np.array([1.0, bad, 3.0, 2.0, 0.5])
        for p in (None, np.array([0.1, 0.2, 0.3, 0.0, 0.4])):
            for c in (0.0, 0.1):
                memory = search.new_memory(DEVICE)
                assert np.isnan(ball(u, p, c, 0.3, memory)).all()
                assert math.isnan(memory[0])


def test_a_price_on_the_device():
    u = np.random.default_rng(3).normal(size=50)
    for c in (1e-3, 0.7, 50.0):
        assert_close(ball(u, None, tensor(c), 0.3), ball(u, None, c, 0.3), 1e-14)


@needs_cuda
@pytest.mark.parametrize("n", (300_001, 2_000_000))
def test_kl_balls_of_many_rows(n):
    rng = np.random.default_rng(4)
    for k, u in enumerate((rng.lognormal(size=n), np.round(rng.normal(size=n), 2) + 1e8)):
        p = shares(n, rng) if k else None
        for c in (0.0, 1e-2, 1.0):
            for radius in RADII[1:]:
                q = ball(u, p, c, radius)
                assert_close(q, ball_by_sums(u, p, c, radius), 1e-11)
                assert abs(math.fsum(q) - 1.0) <= 1e-12


@needs_cuda
def test_recorded_kl_balls():
    """Recorded once, replayed with other losses and another price."""
    u = torch.randn(200_000, dtype=torch.float64, device=DEVICE)
    c, out, memory = tensor(0.1), torch.empty_like(u), search.new_memory(DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiled before the recording
        search.weights(KL_BALL, u, None, c, 0.3, out, memory)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        search.weights(KL_BALL, u, None, c, 0.3, out, memory)
    for price in (0.1, 1e-5, 20.0, 0.3):
        u.copy_(torch.randn(200_000, device=DEVICE))
        c.fill_(price)
        graph.replay()
        assert_close(out.cpu().numpy(), ball_by_sums(u.cpu().numpy(), None, price, 0.3), 1e-11)


@needs_cuda
def test_who_takes_the_kernel():
    """Sets, groups and gradients as elsewhere; equal input gives equal bits."""
    u = torch.randn(100_000, dtype=torch.float64, device=DEVICE)
    p = torch.full_like(u, 1e-5)
    q = thresholds.kl_ball(u, p, 0.01, 0.3)
    assert torch.equal(q, search.weights(KL_BALL, u, p, 0.01, 0.3))
    slow = thresholds.kl_ball(u.clone().requires_grad_(), p, 0.01, 0.3)
    assert slow.requires_grad
    assert_close(q.cpu().numpy(), slow.detach().cpu().numpy(), 1e-11)


# ------------------------------------------------------------------------------------- pools


SETS = {
    "extremile": drago.Extremile(2.5),
    "esrm": drago.ESRM(3.0),
    # No density below the middle: KL rows without spectrum join what is above them.
    "values": drago.Spectrum(lambda t: 2.0 * (np.asarray(t) > 0.5)),
}
all_divergences = pytest.mark.parametrize("divergence", ("chi2", "kl"))


def in_order(u, p, set_):
    """Losses in their order, their weights and the spectrum's masses, and where they were."""
    live = torch.where(p > 0, u, math.inf)
    ordered, order = live.sort()
    share = p[order]
    return torch.where(share > 0, ordered, u.amax()), share, masses(share, set_), order


def masses(share, set_):
    return Spectra(set_).masses(share, False)


def by_kernels(u, p, sigma, c, order, linear):
    arguments = (x.to(DEVICE) for x in (u, p, sigma))
    free = thresholds.is_zero(c)
    with np.errstate(all="ignore"):
        q = pool_launch.weights(*arguments, c, order.to(DEVICE), linear=linear, free=free)
    return q.cpu().numpy()


def by_rounds(u, p, sigma, c, order, linear):
    """The generic way, on the processor."""
    n = int(u.shape[0])
    more = (1 << (n - 1).bit_length()) - n
    rows = (
        torch.cat([u, u[-1:].expand(more)]),
        *(torch.nn.functional.pad(x, (0, more)) for x in (p, sigma)),
    )
    ratio = pools._Pools(*rows, c, linear).ratios()[:n]
    return torch.zeros_like(u).scatter(0, order, p * ratio).numpy()


def compare(u, p, set_, c, divergence, rtol=1e-12):
    rows = in_order(torch.from_numpy(u), torch.from_numpy(p), set_)
    *sorted_rows, order = rows
    linear = divergence == "chi2" or c == 0.0
    q = by_kernels(*sorted_rows, c, order, linear)
    assert_close(q, by_rounds(*sorted_rows, c, order, linear), rtol)
    assert (q[p == 0] == 0).all()
    assert abs(math.fsum(q) - 1.0) <= 1e-11
    return q


@all_divergences
@pytest.mark.parametrize("n", (1, 2, 3, 1025, 5000, 70_001) if CUDA else (1, 2, 3, 21, 37))
def test_pools(n, divergence):
    rng = np.random.default_rng(n)
    for k, u in enumerate(vectors(n, rng)):
        if not CUDA and n > 3 and (k + n) % 3:
            continue
        p = shares(n, rng) if (k + n) % 2 else np.full(n, 1.0 / n)
        set_ = list(SETS.values())[k % 3]
        for c in (0.0, 1e-9, 1e-2, 1.0, 1e5) if CUDA else (0.0, 1e-9, 0.3)[k % 2 :]:
            compare(u, p, set_, c, divergence)


@all_divergences
def test_pools_as_for_arrays(divergence):
    needs_kernels()
    n = 3000 if CUDA else 30
    rng = np.random.default_rng(5)
    for k, set_ in enumerate(SETS.values()):
        u = rng.normal(size=n)
        p = rng.dirichlet(np.ones(n)) if k % 2 else np.full(n, 1.0 / n)
        for c in (0.0, 0.02, 3.0):
            oracle = set_._oracle(p, as_divergence(divergence), None)
            assert_close(compare(u, p, set_, c, divergence), oracle.weights(u, c), 1e-10)


@all_divergences
def test_one_pool_and_none(divergence):
    """Of equal losses; and of losses that rise, by their price, faster than the spectrum or not."""
    n = 20_001 if CUDA else 37
    p = np.full(n, 1.0 / n)
    q = compare(np.full(n, -3.0), p, SETS["esrm"], 0.1, divergence)
    assert_close(q, p)
    sigma = np.linspace(0.5, 1.5, n)
    sigma /= sigma.sum()
    u = np.linspace(0.0, 1.0, n) * n
    linear = divergence == "chi2"
    rows = [torch.from_numpy(x) for x in (u, p, sigma)]
    assert_close(by_kernels(*rows, 1e-4, torch.arange(n), linear), sigma)
    # So dear that the spectrum rises faster than the losses everywhere.
    c = 1e4 * n
    expected = 1.0 + (u - u.mean()) / c if linear else np.exp(u / c)
    q = by_kernels(*rows, c, torch.arange(n), linear)
    assert_close(q, expected / expected.sum())


@all_divergences
def test_pools_with_a_price_on_the_device(divergence):
    n = 3000 if CUDA else 21
    u, p = np.random.default_rng(6).normal(size=n), np.full(n, 1.0 / n)
    rows = in_order(torch.from_numpy(u), torch.from_numpy(p), SETS["esrm"])
    *sorted_rows, order = rows
    for c in (1e-3, 0.7):
        found = by_kernels(*sorted_rows, tensor(c), order, divergence == "chi2")
        assert_close(found, by_kernels(*sorted_rows, c, order, divergence == "chi2"), 1e-14)


if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    FLOATS = st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e8, 1e100, -1e100, 1.0 + 2**-52]),
        st.floats(-10, 10, allow_subnormal=False),
        st.integers(-3, 3).map(float),
    )

    @st.composite
    def adversaries(draw):
        n = draw(st.integers(1, 40 if CUDA else 18))
        u = np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)))
        p = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=float)
        p[draw(st.integers(0, n - 1))] += 1.0
        c = draw(st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 1.0, 1e3]))
        divergence = draw(st.sampled_from(["chi2", "kl"]))
        return u, p / p.sum(), SETS[draw(st.sampled_from(sorted(SETS)))], c, divergence

    @settings(
        max_examples=300 if CUDA else 10,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(adversaries())
    def test_pools_of_adversarial_numbers(adversary):
        compare(*adversary, rtol=1e-11)


@needs_cuda
@all_divergences
@pytest.mark.parametrize("set_", SETS.values(), ids=SETS)
def test_pools_of_many_rows(set_, divergence):
    n = 1_300_003
    rng = np.random.default_rng(7)
    for p in (np.full(n, 1.0 / n), shares(n, rng)):
        for c in (1e-3, 0.5):
            compare(rng.lognormal(size=n), p, set_, c, divergence, 1e-9)


@needs_cuda
@all_divergences
def test_recorded_pools(divergence):
    """Recorded once, replayed with other losses and another price; equal bits each time."""
    n = 100_003
    u, c = torch.randn(n, dtype=torch.float64, device=DEVICE), tensor(0.1)
    p, spectra = torch.full_like(u, 1.0 / n), Spectra(SETS["extremile"])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiled before the recording
        pools.spectral(u, p, c, divergence, spectra, True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = pools.spectral(u, p, c, divergence, spectra, True)
    for price in (0.1, 1e-5, 20.0):
        u.copy_(torch.randn(n, device=DEVICE))
        c.fill_(price)
        graph.replay()
        assert torch.equal(q, pools.spectral(u, p, c, divergence, spectra, True))
        expected = pools.spectral(u.cpu(), p.cpu(), price, divergence, spectra, True).numpy()
        assert_close(q.cpu().numpy(), expected, 1e-10)


@needs_cuda
def test_rounds_where_the_kernels_cannot_be_built(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler")

    u = torch.randn(5000, dtype=torch.float64, device=DEVICE)
    p, spectra = torch.full_like(u, 1 / 5000), Spectra(SETS["esrm"])
    expected = pools.spectral(u, p, 0.1, "kl", spectra, True)
    monkeypatch.setattr(pools, "_broken", set())
    monkeypatch.setattr(pool_launch, "weights", fails)
    with pytest.warns(RuntimeWarning, match="joining pools without: no compiler"):
        q = pools.spectral(u, p, 0.1, "kl", spectra, True)
    torch.testing.assert_close(q, expected, rtol=1e-10, atol=1e-18)
    assert torch.equal(q, pools.spectral(u, p, 0.1, "kl", spectra, True))
