"""Passes over a matrix on a CUDA device, against slow twins.

Without such a device they run in Triton's interpreter, if ``TRITON_INTERPRET=1``.
"""

# ruff: noqa: E402  (nothing below can be imported without torch and triton)

import math
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("neither a CUDA device nor TRITON_INTERPRET=1", allow_module_level=True)

from drago.rows import fused as _triton
from drago.rows.fused import HUBER, LOGISTIC, SQUARED, Rows, accumulate, evaluate, visit

DEVICE = "cuda" if CUDA else "cpu"
N = 20_011 if CUDA else 1_003
LOSSES = (SQUARED, HUBER, LOGISTIC)
# The number of blocks, and of neighbours that stay together.
LAYOUTS = ((1, 1), (3, 1), (4, 7), (2, 256), (5, 1000))
DELTA = 0.7
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device")
all_losses = pytest.mark.parametrize("code", LOSSES)
all_widths = pytest.mark.parametrize("d", (1, 3, 100, 130, 700))
both_types = pytest.mark.parametrize("dtype", (torch.float32, torch.float64))


def tensor(x, dtype=torch.float64):
    return torch.as_tensor(np.asarray(x), dtype=dtype, device=DEVICE)


def row_numbers(n, n_blocks, group):
    """The rows of each block."""
    owner = np.arange(n) // group % n_blocks
    return [np.flatnonzero(owner == k) for k in range(n_blocks)]


def loss_and_slope(code, y, z):
    r = z - y
    if code == SQUARED:
        return 0.5 * r * r, r
    if code == HUBER:
        far = np.abs(r) > DELTA
        return np.where(far, DELTA * (np.abs(r) - 0.5 * DELTA), 0.5 * r * r), r.clip(-DELTA, DELTA)
    m = np.where(y > 0.5, z, -z)
    e = np.exp(-np.abs(m))
    s = np.where(m > 0, e, 1.0) / (1.0 + e)
    return np.log1p(e) + np.maximum(-m, 0.0), np.where(y > 0.5, -s, s)


class Case:
    """A problem in NumPy, and what the passes need of it on the device."""

    def __init__(self, n=N, d=100, dtype=torch.float32, code=SQUARED, layout=(1, 1), seed=0):
        rng = np.random.default_rng(seed)
        self.code = code
        self.x = tensor(rng.standard_normal((n, d)), dtype)
        self.blocks = row_numbers(n, *layout)
        self.X = self.x.double().cpu().numpy()
        self.w = rng.standard_normal(d) / math.sqrt(d)
        self.b = rng.standard_normal(1)
        self.y = rng.standard_normal(n)
        if code == LOGISTIC:
            self.y = (self.y > 0).astype(float)
        self.rng = rng
        self.rows = Rows.deal(n, *layout, device=DEVICE)
        self.settings = {"code": code, "parameter": DELTA}

    def model(self):
        """The arguments that all passes with predictions begin with."""
        return self.x, tensor(self.y), tensor(self.w), tensor(self.b)

    def truth(self, k):
        """Losses, slopes and predictions of a block."""
        own = self.blocks[k]
        z = self.X[own] @ self.w + self.b
        return (*loss_and_slope(self.code, self.y[own], z), z)

    def weights(self, share):
        """Random weights by row, all but a share of them 0."""
        return self.rng.random(self.y.size) * (self.rng.random(self.y.size) < share)

    def thin(self):
        """Some weights, with rows that are not to be read where they are 0."""
        q = self.weights(0.1)
        self.x[torch.as_tensor(q == 0, device=DEVICE)] = math.nan
        return q


def block_number(k):
    return torch.tensor([k], device=DEVICE)


def assert_close(found, expected, scale=None):
    scale = np.abs(expected).max(initial=0.0) if scale is None else scale
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=0, atol=1e-12 * scale)


def assert_sums(found, X, c):
    grad, total = found
    assert grad.shape == (X.shape[1],) and total.shape == (1,)
    assert_close(grad, X.T @ c, scale=(np.abs(X).T @ np.abs(c)).max(initial=0.0))
    assert_close(total, [c.sum()], scale=np.abs(c).sum())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", (1, 40, N))
def test_rows_are_where_they_should_be(n, layout):
    rows = Rows.deal(n, *layout)
    blocks = row_numbers(n, *layout)
    assert rows.starts.diff().tolist() == [block.size for block in blocks]
    assert rows.largest == max(block.size for block in blocks)
    for k, block in enumerate(blocks):
        at = np.arange(block.size)
        group = rows.group
        found = (k + at // group * rows.n_blocks) * group + at % group
        np.testing.assert_array_equal(found, block)


# ---------------------------------------------------------------------------------- evaluate


def check_evaluate(case):
    for k, block in enumerate(case.blocks):
        outs = [tensor(np.full(case.rows.largest, 7.0)) for _ in range(3)]
        evaluate(*case.model(), case.rows, block_number(k), *outs, **case.settings)
        for out, expected in zip(outs, case.truth(k)):
            assert_close(out[: block.size], expected)
            assert torch.all(out[block.size :] == 7.0)


@both_types
@all_widths
@all_losses
def test_evaluate(code, d, dtype):
    check_evaluate(Case(n=N if d < 700 else 101, d=d, dtype=dtype, code=code))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_evaluate_blocks(layout):
    check_evaluate(Case(d=5, layout=layout, code=LOGISTIC))


def test_raw_predictions_are_optional():
    case = Case(d=3)
    losses, slopes = tensor(np.zeros(N)), tensor(np.zeros(N))
    evaluate(*case.model(), case.rows, block_number(0), losses, slopes, **case.settings)
    assert_close(losses, case.truth(0)[0])
    assert_close(slopes, case.truth(0)[1])


def test_logistic_keeps_its_digits():
    """Far from the margin, losses and slopes are small, not 0."""
    z = np.array([0.0, 1e-30, 1e-9, 0.3, 1.0, 18.0, 30.0, 36.7, 50.0, 300.0, 690.0, 800.0])
    z = np.concatenate([z, -z])
    for label in (0.0, 1.0):
        y = np.full(z.size, label)
        losses, slopes = tensor(np.zeros(z.size)), tensor(np.zeros(z.size))
        evaluate(
            tensor(z[:, None]),
            tensor(y),
            tensor([1.0]),
            tensor([0.0]),
            Rows.deal(z.size, device=DEVICE),
            block_number(0),
            losses,
            slopes,
            code=LOGISTIC,
        )
        for found, expected in zip((losses, slopes), loss_and_slope(LOGISTIC, y, z)):
            np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-14, atol=1e-320)


# ------------------------------------------------------------------------------------- visit


def check_visit(case, q, minus=None, **settings):
    for k, block in enumerate(case.blocks):
        found = visit(
            *case.model(),
            tensor(q),
            None if minus is None else tensor(minus),
            case.rows,
            block_number(k),
            **case.settings,
            **settings,
        )
        less = np.zeros(block.size) if minus is None else minus[block]
        counts = (q[block] > settings.get("negligible", 0.0)) | (less != 0)
        c = q[block][counts] * case.truth(k)[1][counts] - less[counts]
        assert_sums(found, case.X[block[counts]], c)


@both_types
@all_widths
@all_losses
def test_visit(code, d, dtype):
    case = Case(n=N if d < 700 else 101, d=d, dtype=dtype, code=code)
    check_visit(case, case.weights(1.0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("with_minus", (False, True))
def test_visit_blocks(layout, with_minus):
    case = Case(d=6, layout=layout, code=HUBER)
    minus = case.weights(0.5) - 0.5 * case.weights(0.5) if with_minus else None
    check_visit(case, case.weights(0.7), minus)


@pytest.mark.parametrize("d", (3, 100, 700))
def test_rows_without_weight_are_not_read(d):
    case = Case(n=503, d=d, layout=(2, 16))
    check_visit(case, case.thin())


@pytest.mark.parametrize("d", (3, 700))
def test_what_is_known_of_rows_without_weight_is_subtracted(d):
    case = Case(n=503, d=d, layout=(2, 16))
    q = case.thin()
    minus = np.where(q > 0, case.rng.standard_normal(q.size), 0.0)
    kept = case.rng.random(q.size) < 0.5
    check_visit(case, q * kept, minus)


@pytest.mark.parametrize("d", (3, 700))
def test_negligible_weights(d):
    case = Case(n=503, d=d)
    q = case.thin()
    check_visit(case, np.where(q > 0, q, 1e-9), negligible=1e-9)


@pytest.mark.parametrize("layout", ((1, 1), (4, 7)))
def test_no_weights(layout):
    case = Case(d=100, layout=layout)
    case.x.fill_(math.nan)
    check_visit(case, np.zeros(N))


def test_fewer_rows_than_blocks():
    case = Case(n=5, d=3, layout=(4, 2))
    check_visit(case, case.weights(1.0))
    check_evaluate(case)


# -------------------------------------------------------------------------------- accumulate


def check_accumulate(case, c):
    for k, block in enumerate(case.blocks):
        own = np.full(case.rows.largest, 1e30)
        own[: block.size] = c[block]
        found = accumulate(case.x, tensor(own), case.rows, block_number(k))
        assert_sums(found, case.X[block], c[block])


@both_types
@all_widths
def test_accumulate(d, dtype):
    case = Case(n=N if d < 700 else 101, d=d, dtype=dtype)
    check_accumulate(case, case.rng.standard_normal(case.y.size))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_accumulate_blocks(layout):
    case = Case(d=6, layout=layout)
    check_accumulate(case, case.thin() * case.rng.choice([-1.0, 1.0], N))


# ------------------------------------------------------------------------- all of them at once


@pytest.mark.parametrize("d", (5, 700))
def test_sums_are_the_same_every_time_and_go_where_they_should(d):
    case = Case(n=503, d=d)
    q, c = tensor(case.weights(1.0)), tensor(case.rng.standard_normal(503))
    out = tensor(np.zeros(d + 1))
    for arguments in ((visit, *case.model(), q, None), (accumulate, case.x, c)):
        function, *arguments = arguments
        settings = case.settings if function is visit else {}
        first = function(*arguments, case.rows, block_number(0), **settings)
        again = function(*arguments, case.rows, block_number(0), out, **settings)
        for one, other in zip(first, again):
            assert torch.equal(one, other)
        assert torch.equal(torch.cat(again), out)


def test_tiles_of_any_shape(monkeypatch):
    """The rule decides how fast a pass is, and nothing else."""
    case = Case(n=203, d=12, code=LOGISTIC, layout=(2, 16))
    for spread, stages, rows, ways in ((True, 1, 16, 16), (False, 3, 16, 4), (False, 1, 4, 16)):
        tiling = _triton._Tiling(rows, 2, 8, ways, 1, stages, 1, segment=32, spread=spread)
        monkeypatch.setattr(_triton, "_tiling", lambda *_, tiling=tiling: tiling)
        check_evaluate(case)
        check_visit(case, case.weights(0.5))
        check_accumulate(case, case.weights(0.5))


@needs_cuda
def test_a_recorded_pass_takes_another_block():
    case = Case(layout=(3, 64), code=LOGISTIC)
    block = block_number(0)
    q = case.weights(0.5)
    model, weights = case.model(), tensor(q)
    losses, slopes, out = (tensor(np.zeros(m)) for m in (case.rows.largest,) * 2 + (101,))

    def passes():
        evaluate(*model, case.rows, block, losses, slopes, **case.settings)
        visit(*model, weights, None, case.rows, block, out, **case.settings)
        return accumulate(case.x, slopes, case.rows, block)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        passes()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = passes()
    for k in (2, 0, 1):
        block.fill_(k)
        graph.replay()
        own, expected = case.blocks[k], case.truth(k)
        assert_close(losses[: own.size], expected[0])
        assert_close(slopes[: own.size], expected[1])
        assert_sums((out[:100], out[100:]), case.X[own], q[own] * expected[1])
        assert_sums(sums, case.X[own], expected[1])


@needs_cuda
@pytest.mark.parametrize("layout", ((1, 1), (2, 256)))
def test_more_entries_than_32_bits_count(layout):
    n, d = 22_000_003, 100
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("not enough memory on the device")
    rng = np.random.default_rng(0)
    used = np.concatenate([np.arange(1000), np.arange(n - 1000, n)])
    at = tensor(used, torch.int64)
    x = torch.empty((n, d), dtype=torch.float32, device=DEVICE)
    x[at] = tensor(rng.standard_normal((used.size, d)), x.dtype)
    X, w = x[at].double().cpu().numpy(), rng.standard_normal(d)
    q = np.zeros(n)
    q[used] = 1.0
    blocks = row_numbers(n, *layout)
    rows = Rows.deal(n, *layout, device=DEVICE)
    weights = tensor(q)
    model = x, torch.zeros_like(weights), tensor(w), tensor([0.5])
    losses, slopes = torch.zeros_like(weights), torch.zeros_like(weights)
    for k, block in enumerate(blocks):
        own = used // rows.group % rows.n_blocks == k
        c = X[own] @ w + 0.5
        found = visit(*model, weights, None, rows, block_number(k), code=SQUARED)
        assert_sums(found, X[own], c)
        evaluate(*model, rows, block_number(k), losses, slopes, code=SQUARED)
        counts = tensor(q[block] > 0, torch.bool)
        assert_close(slopes[: block.size][counts], c)
        factors = torch.where(counts, slopes[: block.size], 0.0)
        assert_sums(accumulate(x, factors, rows, block_number(k)), X[own], c)
