"""Robust losses of batches: values, gradients, precision, compilation, bias."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import copy
import doctest
import io
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy

import cases
import drago
import twins
from drago.torch_engine import RobustLoss, robust_loss

SETS = {**cases.SETS, "grouped": (drago.Grouped(drago.CVaR(0.3)), None)}
PAIRS = [*cases.PAIRS, ("grouped", "chi2"), ("grouped", "kl")]
all_pairs = pytest.mark.parametrize(("name", "divergence"), PAIRS)
# torch.compile uses parts of torch that warn.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def labels(name, n):
    return torch.arange(n) % 3 if name == "grouped" else None


def described(name, n):
    inner = ("cvar", 0.3)
    return ("grouped", inner, np.arange(n) % 3) if name == "grouped" else SETS[name][1]


def batch(n, seed=0, **settings):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.exponential(size=n), **{"dtype": torch.float64, **settings})


# ---------------------------------------------------------------------------- value and gradient


@pytest.mark.thinned(2)
@all_pairs
@pytest.mark.parametrize("shift_cost", [0.0, 0.3])
def test_value_is_the_maximum(name, divergence, shift_cost):
    rng = np.random.default_rng(1)
    for n in (1, 2, 9, 40):
        losses = batch(n, seed=n)
        weight = rng.exponential(size=n)
        for given in (None, weight):
            p = np.full(n, 1 / n) if given is None else given / given.sum()
            u = losses.numpy()
            q = twins.worst_case(described(name, n), u, shift_cost, divergence, p)
            expected = q @ u - shift_cost * twins.divergence_value(divergence, q, p)
            found = robust_loss(
                losses,
                SETS[name][0],
                divergence,
                shift_cost,
                sample_weight=None if given is None else torch.tensor(given),
                groups=labels(name, n),
            )
            assert found.shape == ()
            assert float(found) == pytest.approx(expected, rel=1e-12)


@all_pairs
@pytest.mark.parametrize("shift_cost", [0.0, 0.2])
def test_gradient_is_the_weights(name, divergence, shift_cost):
    criterion = RobustLoss(SETS[name][0], divergence, shift_cost)
    losses = batch(13).requires_grad_()
    (3.0 * criterion(losses, groups=labels(name, 13))).backward()
    q = criterion.weights(losses, groups=labels(name, 13))
    assert not q.requires_grad
    assert float(q.sum()) == pytest.approx(1.0, rel=1e-12)
    torch.testing.assert_close(losses.grad, 3.0 * q, rtol=1e-14, atol=0)


@all_pairs
def test_gradcheck(name, divergence):
    """Without a shift cost too: at losses without ties the loss is differentiable."""
    weight = batch(9, seed=3)
    for shift_cost in (0.0, 0.2):
        criterion = RobustLoss(SETS[name][0], divergence, shift_cost)
        losses = batch(9, seed=2).requires_grad_()
        assert torch.autograd.gradcheck(criterion, (losses, weight, labels(name, 9)))


def test_second_derivatives_are_refused():
    losses = batch(8).requires_grad_()
    loss = robust_loss(losses, "cvar", shift_cost=0.1)
    (gradient,) = torch.autograd.grad(loss, losses, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.square().sum().backward()


def test_functional_gradient():
    losses = batch(8)
    found = torch.func.grad(lambda u: robust_loss(u, "cvar", shift_cost=0.1))(losses)
    torch.testing.assert_close(found, RobustLoss("cvar", shift_cost=0.1).weights(losses))


def test_a_model_is_trained():
    """The gradient reaches the parameters, and descends."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    model = torch.nn.Linear(5, 3)
    criterion = RobustLoss(drago.CVaR(0.3), shift_cost=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = criterion(cross_entropy(model(x), y, reduction="none"))
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.85 * values[0]


# --------------------------------------------------------------------------- batches of all kinds


@all_pairs
def test_a_batch_of_one_and_of_equals(name, divergence):
    for shift_cost in (0.0, 0.5):
        criterion = RobustLoss(SETS[name][0], divergence, shift_cost)
        for n in (1, 6):
            losses = torch.full((n,), 2.5, requires_grad=True)
            loss = criterion(losses, groups=labels(name, n))
            loss.backward()
            assert loss.item() == pytest.approx(2.5, rel=1e-6)
            torch.testing.assert_close(losses.grad, torch.full((n,), 1 / n))


def test_the_level_holds_for_a_short_last_batch():
    criterion = RobustLoss(drago.CVaR(0.25))
    for n in (64, 32, 4):
        losses = torch.arange(n, dtype=torch.float64)
        tail = losses[-n // 4 :].mean()
        torch.testing.assert_close(criterion(losses), tail)
    # a quarter of 6 rows: the largest one, and half of the next
    torch.testing.assert_close(criterion(torch.arange(6.0)), torch.tensor((5.0 + 0.5 * 4.0) / 1.5))


def test_a_column_of_losses():
    losses = batch(6)[:, None].requires_grad_()
    loss = robust_loss(losses, sample_weight=batch(6)[:, None])
    loss.backward()
    assert losses.grad.shape == (6, 1)
    flat = robust_loss(losses[:, 0], sample_weight=batch(6))
    torch.testing.assert_close(loss, flat, rtol=0, atol=0)


def test_groups_that_a_batch_lacks():
    criterion = RobustLoss(drago.Grouped("simplex"))
    losses = torch.tensor([1.0, 2.0, 6.0, 3.0])
    assert criterion(losses, groups=torch.tensor([4, 4, 9, 9])).item() == pytest.approx(4.5)
    assert criterion(losses, groups=torch.tensor([-1, 2**40, 7, 7])).item() == pytest.approx(4.5)
    assert criterion(losses, groups=torch.tensor([5, 5, 5, 5])).item() == pytest.approx(3.0)


def test_weight_zero_is_absence():
    weight = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0])
    losses = torch.tensor([1.0, np.nan, 3.0, np.inf, 2.0], requires_grad=True)
    for name in ("cvar", "extremile", "chi2_ball", "kl_ball"):
        losses.grad = None
        loss = robust_loss(losses, name, shift_cost=0.1, sample_weight=weight)
        loss.backward()
        kept = weight > 0
        rest = robust_loss(losses[kept], name, shift_cost=0.1, sample_weight=weight[kept])
        torch.testing.assert_close(loss, rest)
        assert losses.grad[~kept].eq(0).all() and losses.grad[kept].isfinite().all()


@all_pairs
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_huge_and_tiny_losses_in_single_precision(name, divergence, scale):
    small = batch(12, dtype=torch.float32)
    groups = labels(name, 12)
    for shift_cost in (0.0, 0.2):
        expected = robust_loss(small, SETS[name][0], divergence, shift_cost, groups=groups)
        losses = (small * scale).requires_grad_()
        loss = robust_loss(losses, SETS[name][0], divergence, shift_cost * scale, groups=groups)
        loss.backward()
        assert loss.item() == pytest.approx(scale * expected.item(), rel=1e-5)
        assert losses.grad.isfinite().all()
        assert losses.grad.sum().item() == pytest.approx(1.0, rel=1e-5)


def test_not_a_number_in_and_out():
    for bad in (np.nan, np.inf):
        losses = torch.tensor([1.0, bad, 2.0], requires_grad=True)
        loss = robust_loss(losses)
        loss.backward()
        assert loss.isnan() and losses.grad.isnan().all()
    for weight in ([1.0, -1.0, 2.0], [0.0, 0.0, 0.0], [1.0, np.inf, 1.0], [1.0, np.nan, 1.0]):
        assert robust_loss(torch.ones(3), sample_weight=torch.tensor(weight)).isnan(), weight


def test_checks_on_request():
    criterion = RobustLoss(check_finite=True)
    criterion(torch.ones(3))
    with pytest.raises(ValueError, match="contain 2 NaN or infinite entries, the first at 1"):
        criterion(torch.tensor([1.0, np.nan, np.inf]))
    criterion(torch.tensor([1.0, np.nan]), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="finite numbers >= 0"):
        criterion(torch.ones(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="all of them are zero"):
        criterion(torch.ones(2), torch.zeros(2))


# ------------------------------------------------------------------------------------- refusals


def test_refusals():
    with pytest.raises(ValueError, match="reduction='none'"):
        robust_loss(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"but have shape \(4, 3\)"):
        robust_loss(torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"but have shape \(0,\)"):
        robust_loss(torch.ones(0))
    with pytest.raises(TypeError, match=r"dtype is torch\.int64"):
        robust_loss(torch.arange(3))
    with pytest.raises(TypeError, match="losses must be a tensor"):
        robust_loss([1.0, 2.0])
    with pytest.raises(ValueError, match=r"sample_weight must have .* shape \(3,\)"):
        robust_loss(torch.ones(3), sample_weight=torch.ones(2))
    with pytest.raises(ValueError, match="needs the group of each sample"):
        robust_loss(torch.ones(3), drago.Grouped())
    with pytest.raises(ValueError, match="has no use for it"):
        robust_loss(torch.ones(3), groups=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="groups must hold integers"):
        robust_loss(torch.ones(3), drago.Grouped(), groups=torch.zeros(3))
    with pytest.raises(ValueError, match="shift_cost must be a number"):
        RobustLoss(shift_cost=-1.0)
    with pytest.raises(TypeError, match="check_finite must be True or False"):
        RobustLoss(check_finite=1)


def test_is_a_module():
    criterion = RobustLoss(drago.CVaR(0.2), "kl", 0.5)
    assert repr(criterion) == "RobustLoss(CVaR(tail_fraction=0.2), divergence='kl', shift_cost=0.5)"
    assert not list(criterion.parameters()) and not criterion.state_dict()
    losses = batch(7)
    copied = copy.deepcopy(criterion)
    file = io.BytesIO()
    torch.save(criterion, file)
    file.seek(0)
    for other in (copied, torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(losses), criterion(losses), rtol=0, atol=0)


# ----------------------------------------------------------------------- precision and compilation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_of_the_result(dtype):
    losses = batch(20).to(dtype).requires_grad_()
    loss = robust_loss(losses, "cvar", shift_cost=0.1)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    loss.backward()
    assert losses.grad.dtype == dtype
    exact = robust_loss(losses.detach().double(), "cvar", shift_cost=0.1)
    rtol = 1e-15 if dtype == torch.float64 else 1e-7
    assert loss.item() == pytest.approx(exact.item(), rel=rtol)


@pytest.mark.parametrize("name", ["cvar", "extremile", "chi2_ball", "kl_ball"])
def test_under_autocast(name):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(x)
        assert scores.dtype == torch.bfloat16
        loss = robust_loss(cross_entropy(scores, y, reduction="none"), name, shift_cost=0.1)
        raw = scores.square().mean(1)
        assert raw.dtype == torch.bfloat16
        half = robust_loss(raw, name, shift_cost=0.1)
    assert loss.dtype == half.dtype == torch.float32
    (loss + half).backward()
    assert model.weight.grad.isfinite().all()
    exact = robust_loss(raw.detach().double(), name, shift_cost=0.1)
    assert half.item() == pytest.approx(exact.item(), rel=1e-6)


@compiles
@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("cvar", (8, 5)), ("grouped", (6,))])
def test_compiles_to_one_graph(name, sizes):
    torch._dynamo.reset()
    criterion = RobustLoss(SETS[name][0], shift_cost=0.1)
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    for n in sizes:
        losses, again = batch(n).requires_grad_(), batch(n).requires_grad_()
        one = compiled(losses, groups=labels(name, n))
        two = criterion(again, groups=labels(name, n))
        (one + two).backward()
        # A graph may hold the sums in another order.
        torch.testing.assert_close(one, two, rtol=1e-12, atol=0)
        torch.testing.assert_close(losses.grad, again.grad, rtol=1e-12, atol=1e-15)


@compiles
def test_a_compiled_model_with_its_loss():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    criterion = RobustLoss("cvar", shift_cost=0.1)

    def loss(x, y):
        return criterion(cross_entropy(model(x), y, reduction="none"))

    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    compiled(x, y).backward()
    found = model.weight.grad.clone()
    model.weight.grad = None
    loss(x, y).backward()
    torch.testing.assert_close(found, model.weight.grad)


@needs_cuda
@pytest.mark.parametrize("name", ["cvar", "extremile", "chi2_ball", "kl_ball", "grouped"])
def test_on_cuda_and_under_its_autocast(name):
    criterion = RobustLoss(SETS[name][0], shift_cost=0.1)
    groups = labels(name, 300)
    losses = batch(300).requires_grad_()
    there = losses.detach().cuda().requires_grad_()
    criterion(losses, groups=groups).backward()
    loss = criterion(there, groups=None if groups is None else groups.cuda())
    loss.backward()
    assert loss.is_cuda and there.grad.is_cuda
    torch.testing.assert_close(there.grad.cpu(), losses.grad, rtol=1e-11, atol=1e-15)
    with torch.autocast("cuda", dtype=torch.float16):
        half = criterion(there.half(), groups=None if groups is None else groups.cuda())
    assert half.dtype == torch.float32


# ------------------------------------------------------------------------------------------ bias


def test_the_bias_of_batches_shrinks_as_the_docstring_says():
    """Exponential losses: the CVaR of level a is 1 - log a, the leading bias (1 - a) / (2 a m)."""
    level, truth = 0.2, 1.0 - np.log(0.2)
    rng = np.random.default_rng(0)
    biases = {}
    for size, count in ((10, 4000), (40, 2000), (160, 1000)):
        losses = np.sort(rng.exponential(size=(count, size)), axis=1)
        tail = losses[:, -round(level * size) :].mean(axis=1)
        one = robust_loss(torch.from_numpy(losses[0]), drago.CVaR(level))
        assert float(one) == pytest.approx(tail[0], rel=1e-12)
        error = tail.std() / np.sqrt(count)
        biases[size] = truth - tail.mean()
        leading = (1 - level) / (2 * level * size)
        assert abs(biases[size] - leading) <= 4 * error + 0.2 * leading
    assert biases[10] > 2 * biases[40] > 0


# ----------------------------------------------------------------------------------- the examples


def test_the_docstrings_example():
    failed, tried = doctest.testmod(sys.modules["drago.training.robust_loss"])
    assert failed == 0 and tried > 0


@pytest.mark.slow
def test_the_example_prints_a_table(capsys):
    script = Path(__file__).parent.parent.parent / "examples" / "robust_digits.py"
    runpy.run_path(str(script))["main"](small=True)
    lines = capsys.readouterr().out.splitlines()
    for name in ("mean", "CVaR 0.2", "classes, CVaR 0.2"):
        assert sum(line.startswith(f"{name} ") for line in lines) == 2


def test_a_baseline_is_subtracted():
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    baseline = torch.tensor([0.5, 0.0, 2.9, 3.5], requires_grad=True)
    module = RobustLoss(drago.CVaR(0.5))
    loss = module(losses, baseline=baseline)
    assert loss.item() == pytest.approx((2.0 + 0.5) / 2)
    loss.backward()
    # Two rows tie for the second place.
    assert losses.grad.tolist() == [0.25, 0.5, 0.0, 0.25]
    assert baseline.grad is None
    np.testing.assert_array_equal(
        module.weights(losses, baseline=baseline), module.weights((losses - baseline).detach())
    )
    column = robust_loss(losses[:, None], drago.CVaR(0.5), baseline=baseline.detach().numpy())
    assert column.item() == loss.item()


@pytest.mark.parametrize("wrong, words", [
    (torch.ones(3), r"baseline must have one entry per sample, shape \(4,\)"),
    (torch.ones(4, dtype=torch.complex64), "baseline must hold real numbers"),
])  # fmt: skip
def test_what_is_no_baseline_is_refused(wrong, words):
    with pytest.raises((TypeError, ValueError), match=words):
        RobustLoss()(torch.ones(4), baseline=wrong)
