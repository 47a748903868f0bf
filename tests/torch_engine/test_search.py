"""The search without a sort, on processors and as a kernel, against the sums in sorted order.

The kernel is run on a CUDA device, or by Triton's interpreter where ``TRITON_INTERPRET=1``.
"""

# ruff: noqa: E402  (nothing below can be imported without torch)

import contextlib
import importlib.util
import math
import multiprocessing
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drago.oracles import search, thresholds
from drago.oracles.rounds import arrays, rows
from drago.oracles.search import BALL, CHI2, KL, VERTEX

BOUNDS = {
    VERTEX: (1.7, 10.0, 1e4, math.inf),
    CHI2: (1.0 + 1e-9, 1.7, 10.0, 1e4, math.inf),
    KL: (1.0 + 1e-9, 1.7, 10.0, 1e4, math.inf),
    BALL: (1e-9, 1e-3, 0.5, 20.0),
}
kinds = pytest.mark.parametrize("kind", BOUNDS, ids=("vertex", "chi2", "kl", "ball"))
has_triton = importlib.util.find_spec("triton") is not None
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
on_cuda = torch.cuda.is_available() and not interpreted
needs_kernel = pytest.mark.skipif(
    not (has_triton and (on_cuda or interpreted)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
needs_cuda = pytest.mark.skipif(not (has_triton and on_cuda), reason="needs Triton and CUDA")
needs_interpreter = pytest.mark.skipif(
    not (has_triton and interpreted), reason="needs Triton and TRITON_INTERPRET=1"
)


@contextlib.contextmanager
def searching(least):
    """From so many rows on."""
    before = dict(search._LEAST_ROWS)
    search._LEAST_ROWS.update(cpu=least, cuda=least)
    try:
        yield
    finally:
        search._LEAST_ROWS.update(before)


def in_order(kind, u, p, c, bound):
    """The weights by sums in sorted order, of the rows with weight; on arrays."""
    nominal = np.full(u.size, 1.0 / u.size) if p is None else p
    live = nominal > 0
    losses, shares = torch.from_numpy(u[live]), torch.from_numpy(nominal[live])
    with searching(2**40):
        if kind == VERTEX:
            q = thresholds.capped_vertex(losses, shares, bound)
        elif kind == BALL:
            q = thresholds.chi2_ball(losses, shares, c, bound)
        else:
            run = thresholds.capped_chi2 if kind == CHI2 else thresholds.capped_kl
            q = run(losses, shares, c, bound)
    everywhere = np.zeros(u.size)
    everywhere[live] = q.numpy()
    return everywhere


def on_processor(kind, u, p, c, bound, memory=None):
    nominal = None if p is None else torch.from_numpy(p)
    return search.weights(kind, torch.from_numpy(u), nominal, c, bound, memory=memory).numpy()


def by_kernel(kind, u, p, c, bound, memory=None):
    from drago.oracles.search import launch

    device = "cuda" if on_cuda else "cpu"
    losses = torch.from_numpy(u).to(device)
    nominal = None if p is None else torch.from_numpy(p).to(device)
    q = torch.empty_like(losses)
    with np.errstate(all="ignore"):
        launch.search(kind, losses, nominal, c, bound, q, memory)
    return q.cpu().numpy()


@pytest.fixture
def small(monkeypatch):
    """Tiles, chunks and samples so small that a few rows need several; the interpreter works."""
    monkeypatch.setattr(rows, "_CHUNK", 8)
    monkeypatch.setattr(arrays, "_SAMPLE", 4)
    if not has_triton or on_cuda:
        return
    from drago.oracles.search import launch

    for name, value in {"_LANES": 8, "_DEPTH": 2, "_FEW": 16, "_TABLE": 64}.items():
        monkeypatch.setattr(launch, name, value)
    if interpreted:
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor

        def patched(tensor, scope):
            # As written there it fails with the newest NumPy.
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


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
    yield 1e8 + rng.integers(0, 4, size=n)
    yield 1e8 + 2.0**-26 * rng.integers(0, 4, size=n)
    yield np.full(n, 0.7)
    yield rng.standard_cauchy(size=n)
    yield x * 10.0 ** rng.integers(-12, 9, size=n)
    yield np.where(rng.random(n) < 0.3, 1e8, x)
    yield np.where(rng.random(n) < 0.3, 1e150, x)


def prices(kind, k):
    if kind == VERTEX:
        return (0.0,)
    return (1e-12, 1e-3, 1.0, 1e6)[k % 2 :: 2] + ((0.0,) if kind == BALL else ())


def compare(run, kind, sizes, seed):
    rng = np.random.default_rng(seed)
    for n in sizes:
        for k, u in enumerate(vectors(n, rng)):
            p = shares(n, rng) if (k + n) % 2 else None
            given = u.copy()
            if p is not None:
                given[p == 0] = (np.nan, np.inf, -np.inf, 1e300)[k % 4]
            for c in prices(kind, k):
                bound = BOUNDS[kind][rng.integers(len(BOUNDS[kind]))]
                q = run(kind, given, p, c, bound)
                assert_close(q, in_order(kind, u, p, c, bound))
                if p is not None:
                    assert (q[p == 0] == 0).all()
                assert abs(math.fsum(q) - 1.0) <= 1e-12


# ------------------------------------------------------------------------------------ the weights


@kinds
def test_agrees_with_sums_in_order(kind, small):
    compare(on_processor, kind, (1, 2, 3, 40, 300), 1)


@kinds
def test_agrees_with_sums_in_order_in_usual_chunks(kind):
    compare(on_processor, kind, (1, 20, 5000), 2)


@needs_kernel
@kinds
def test_kernel_agrees_with_sums_in_order(kind, small):
    compare(by_kernel, kind, (1, 2, 300, 5000) if on_cuda else (1, 2, 40), 3)


@kinds
def test_few_rounds_for_usual_losses(kind):
    rng = np.random.default_rng(4)
    u = rng.lognormal(size=100_000)
    for c in (0.0,) if kind == VERTEX else (1e-3, 1e-1, 1.0):
        memory = search.new_memory("cpu")
        bound = 0.5 if kind == BALL else 10.0
        q = on_processor(kind, u, None, c, bound, memory)
        assert_close(q, in_order(kind, u, None, c, bound), rtol=1e-10)
        assert memory[2] <= (25 if kind == VERTEX else 15)  # about three to nine


if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    FLOATS = st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 1e-300, -1e-300, 1e8, 1e150, -1e150, 1.0 + 2**-52]),
        st.floats(-1e150, 1e150, allow_subnormal=False),
        st.floats(-10, 10, allow_subnormal=False),
        st.integers(-3, 3).map(float),
    )

    @st.composite
    def adversaries(draw):
        kind = draw(st.sampled_from(list(BOUNDS)))
        n = draw(st.integers(1, 30))
        u = np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)))
        if kind == BALL:  # what differs by less is tied for the search
            u[np.abs(u) < 1e-130 * np.abs(u).max()] = 0.0
        weights = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=float)
        weights[draw(st.integers(0, n - 1))] += 1.0
        p = draw(st.sampled_from([None, weights / weights.sum()]))
        spread = np.ptp(u if p is None else u[p > 0])
        relative = draw(st.sampled_from([1e3, 1.0, 0.1, 1e-3, 1e-6, 1e-9, 1e-13]))
        c = float(relative * (spread if spread > 1e-290 else 1.0))
        start = draw(st.sampled_from([None, float(u[0]), 0.0, 1e300]))
        return kind, u, p, c, draw(st.sampled_from(BOUNDS[kind])), start

    def check(run, adversary, device):
        kind, u, p, c, bound, start = adversary
        memory = search.new_memory(device)
        if start is not None:
            memory[0], memory[1] = start, 0.1
        q = run(kind, u, p, c, bound, memory)
        assert_close(q, in_order(kind, u, p, c, bound))
        assert abs(math.fsum(q) - 1.0) <= 1e-12
        passes = float(memory[2])
        assert math.isnan(passes) or passes <= 150

    relaxed = settings(
        max_examples=200,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )

    @relaxed
    @given(adversaries())
    def test_adversarial_numbers(small, adversary):
        check(on_processor, adversary, "cpu")

    @needs_kernel
    @settings(relaxed, max_examples=40 if on_cuda else 100)  # each form has to be compiled
    @given(adversaries())
    def test_adversarial_numbers_in_the_kernel(small, adversary):
        check(by_kernel, adversary, "cuda" if on_cuda else "cpu")


# ----------------------------------------------------------------------------- what is given to it


RUNS = [
    pytest.param(on_processor, "cpu", id="processor"),
    pytest.param(by_kernel, "cuda" if on_cuda else "cpu", id="kernel", marks=needs_kernel),
]
all_runs = pytest.mark.parametrize(("run", "device"), RUNS)


@kinds
@all_runs
def test_equal_weights_need_not_be_given(kind, run, device, small):
    rng = np.random.default_rng(5)
    u, bound = rng.normal(size=50), BOUNDS[kind][1]
    assert_close(run(kind, u, None, 0.3, bound), run(kind, u, np.full(50, 0.02), 0.3, bound), 1e-14)


@kinds
@all_runs
def test_a_search_goes_on_where_the_last_one_ended(kind, run, device, small):
    rng = np.random.default_rng(6)
    u, c, bound = rng.lognormal(size=60), 0.2, BOUNDS[kind][1]
    memory = search.new_memory(device)
    for _ in range(3):
        u = u * (1.0 + 1e-3 * rng.normal(size=60))
        q = run(kind, u, None, c, bound, memory)
        assert_close(q, in_order(kind, u, None, c, bound))
    threshold = float(memory[0])
    q = run(kind, u, None, c, bound, memory)
    assert_close(q, in_order(kind, u, None, c, bound))
    assert float(memory[0]) == pytest.approx(threshold, rel=1e-14)
    assert float(memory[1]) == pytest.approx(0.0, abs=1e-13)
    assert memory[2] <= (6 if kind == VERTEX else 2)
    # Of no use, but it does no harm.
    memory[0], memory[1] = 1e20, -1e3
    assert_close(run(kind, u, None, c, bound, memory), in_order(kind, u, None, c, bound))


@kinds
@all_runs
def test_what_is_not_finite_gives_nan(kind, run, device, small):
    for bad in (np.nan, np.inf, -np.inf):
        u = np.array([1.0, bad, 3.0, 2.0, 0.5])
        for p in (None, np.array([0.1, 0.2, 0.3, 0.0, 0.4])):
            memory = search.new_memory(device)
            assert np.isnan(run(kind, u, p, 0.1, BOUNDS[kind][1], memory)).all()
            assert math.isnan(memory[0])


@kinds
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_the_answer_goes_where_it_is_wanted(kind, device):
    u = torch.randn(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    u = u.to(device)
    c = torch.tensor(0.3, dtype=torch.float32, device=device)
    q = search.weights(kind, u, None, c, BOUNDS[kind][1])
    for out in (torch.empty_like(u), torch.empty(6000, dtype=u.dtype, device=device)[::2], u):
        assert search.weights(kind, u.clone(), None, c, BOUNDS[kind][1], out=out) is out
        torch.testing.assert_close(out, q, rtol=0, atol=0)
    every_other = torch.stack([q, q], dim=1)[:, 0]
    again = search.weights(kind, every_other, None, c, BOUNDS[kind][1])
    torch.testing.assert_close(again, search.weights(kind, q, None, c, BOUNDS[kind][1]))


def test_who_is_taken():
    n = search._LEAST_ROWS["cpu"]
    u = torch.zeros(n, dtype=torch.float64)
    assert search.takes(u)
    assert not search.takes(u[1:])
    assert not search.takes(u.float())
    assert not search.takes(u.to("meta"))
    c = torch.ones((), dtype=torch.float64, requires_grad=True)
    assert not search.takes(u, c)
    with torch.no_grad():
        assert search.takes(u, c)
        assert search.weights(CHI2, u.clone().requires_grad_(), None, c, 2.0).sum() > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # parts of torch that it uses
def test_compiles_to_one_graph():
    u = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
    p = torch.full_like(u, 1 / 5000)
    torch._dynamo.reset()
    compiled = torch.compile(thresholds.capped_chi2, backend="eager", fullgraph=True)
    expected = thresholds.capped_chi2(u, p, 0.2, 5.0)
    torch.testing.assert_close(compiled(u, p, 0.2, 5.0), expected, rtol=1e-11, atol=1e-18)


@pytest.mark.parametrize("kind", (CHI2, BALL))
def test_gradients_take_the_other_way(kind):
    u = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    p = torch.full_like(u, 1 / 5000)
    run, bound = (thresholds.capped_chi2, 5.0) if kind == CHI2 else (thresholds.chi2_ball, 0.5)
    q = run(u.requires_grad_(), p, 0.3, bound)
    (gradient,) = torch.autograd.grad((q * u.detach()).sum(), u)
    assert gradient.abs().max() > 0
    torch.testing.assert_close(run(u.detach(), p, 0.3, bound), q.detach(), rtol=1e-11, atol=1e-18)


# ------------------------------------------------------------------------------ several programs


def one_of_many(k, programs, room, given):
    """A process is a program of the grid: they share memory and wait for each other."""
    from triton.runtime import interpreter

    from drago.oracles.search import launch

    torch.set_num_threads(1)
    builder, start = interpreter.interpreter_builder, interpreter.GridExecutor.__init__
    sizes, places = builder.set_grid_dim, builder.set_grid_idx
    interpreter.GridExecutor.__init__ = lambda self, fn, names, grid, hooks: start(
        self, fn, names, (1,), hooks
    )
    builder.set_grid_dim = lambda *_: sizes(programs, 1, 1)
    builder.set_grid_idx = lambda *_: places(k, 0, 0)
    launch._most_programs = lambda device: programs
    launch._room = lambda size, device: room[:size]
    with np.errstate(all="ignore"):
        launch.search(*given)


@needs_interpreter
@kinds
@pytest.mark.parametrize("capped", [True, False])
def test_programs_wait_for_each_other(kind, capped, small):
    bound = 0.5 if kind == BALL else 4.0 if capped else math.inf
    rng = np.random.default_rng(9)
    u, p = rng.lognormal(size=119), shares(119, rng)
    q, room = (torch.zeros(size, dtype=torch.float64).share_memory_() for size in (119, 1000))
    given = (kind, torch.from_numpy(u), torch.from_numpy(p), 0.2, bound, q, None)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=one_of_many, args=(k, 3, room, given)) for k in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        process.terminate()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert_close(q.numpy(), in_order(kind, u, p, 0.2, bound))


# --------------------------------------------------------------------------------- on the device


@needs_cuda
@kinds
@pytest.mark.parametrize("n", [1, 5000, 300_001, 2_000_000])
def test_cuda_agrees_with_the_processor(kind, n):
    rng = np.random.default_rng(10)
    for k, u in enumerate((rng.lognormal(size=n), np.round(rng.normal(size=n), 2) + 1e8)):
        p = shares(n, rng) if k else None
        for c in (1e-6, 1e-2, 1.0):
            for bound in BOUNDS[kind][1::2]:
                q = by_kernel(kind, u, p, c, bound)
                # A row between the bounds takes the rounding of the sum of all.
                assert_close(q, on_processor(kind, u, p, c, bound), 1e-12 + 1e-15 * n)
                assert abs(math.fsum(q) - 1.0) <= 1e-12


@needs_cuda
@kinds
def test_cuda_gives_equal_bits(kind):
    u = torch.randn(1_000_000, dtype=torch.float64, device="cuda").exp()
    first = search.weights(kind, u, None, 0.1, BOUNDS[kind][1])
    for _ in range(20):
        again = search.weights(kind, u, None, 0.1, BOUNDS[kind][1])
        assert torch.equal(first, again)


@needs_cuda
@kinds
@pytest.mark.parametrize("remembers", [False, True])
def test_cuda_graph(kind, remembers):
    """Recorded once, replayed with other losses and another price."""
    n, bound = 200_000, BOUNDS[kind][1]
    u = torch.randn(n, dtype=torch.float64, device="cuda")
    p = torch.rand(n, dtype=torch.float64, device="cuda")
    p /= p.sum()
    c = torch.tensor(0.1, dtype=torch.float64, device="cuda")
    out = torch.empty_like(u)
    memory = search.new_memory("cuda") if remembers else None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiled before the recording
        search.weights(kind, u, p, c, bound, out, memory)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        search.weights(kind, u, p, c, bound, out, memory)
    for price in (0.1, 1e-5, 20.0, 0.3):
        u.copy_(torch.randn(n, device="cuda"))
        c.fill_(price)
        graph.replay()
        expected = on_processor(kind, u.cpu().numpy(), p.cpu().numpy(), price, bound)
        assert_close(out.cpu().numpy(), expected, rtol=1e-10)


@needs_cuda
def test_many_calls_on_two_streams():
    """Each call has its own counters."""
    u = [torch.randn(500_000, dtype=torch.float64, device="cuda") for _ in range(2)]
    expected = [search.weights(CHI2, x, None, 0.1, 10.0) for x in u]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = [[], []]
    for _ in range(50):
        for k in range(2):
            with torch.cuda.stream(streams[k]):
                found[k].append(search.weights(CHI2, u[k], None, 0.1, 10.0))
    torch.cuda.synchronize()
    for k in range(2):
        assert all(torch.equal(q, expected[k]) for q in found[k])


@needs_cuda
def test_sorts_where_the_kernel_cannot_be_built(monkeypatch):
    from drago.oracles.search import launch

    def fails(*_):
        raise RuntimeError("no compiler")

    u = torch.randn(5000, dtype=torch.float64, device="cuda")
    p = torch.full_like(u, 1 / 5000)
    expected = thresholds.capped_chi2(u, p, 0.1, 10.0)
    monkeypatch.setattr(search, "_broken", set())
    monkeypatch.setattr(launch, "search", fails)
    with pytest.warns(RuntimeWarning, match="could not be built, sorting instead: no compiler"):
        q = thresholds.capped_chi2(u, p, 0.1, 10.0)
    torch.testing.assert_close(q, expected, rtol=1e-11, atol=1e-18)
    assert not search.takes(u)
    torch.testing.assert_close(thresholds.capped_chi2(u, p, 0.1, 10.0), q, rtol=0, atol=0)
