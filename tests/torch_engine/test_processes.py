"""The torch engine in processes of its own: without other packages, and as one of several ranks."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import drago
from drago.torch_engine import robust_loss


def run(code, *arguments, **environment):
    """Start code in a new process."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


def test_lives_without_kernels_and_scikit_learn():
    out = finish(
        run(
            """
            import sys
            for level in ("v4", "v3", "plain"):
                sys.modules[f"drago.kernels._{level}"] = None
            sys.modules["sklearn"] = None
            import torch
            import drago.torch_engine
            from drago import CVaR, Extremile, ESRM, Spectrum, Chi2Ball, KLBall, Simplex, Grouped

            losses = torch.arange(6.0, requires_grad=True)
            weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 0.5, 1.0])
            for uncertainty in (CVaR(0.3), Extremile(2.5), ESRM(3.0), Chi2Ball(0.5), KLBall(0.3),
                                Spectrum(integral=lambda u: u**2), Simplex(), Grouped("esrm"),
                                Spectrum(density=lambda u: 2 * u)):
                groups = torch.arange(6) % 2 if isinstance(uncertainty, Grouped) else None
                for divergence in ("chi2", "kl"):
                    if uncertainty.own_divergence not in (None, divergence):
                        continue
                    for cost in (0.0, 0.1):
                        for given in (None, weight):
                            loss = drago.torch_engine.robust_loss(
                                losses, uncertainty, divergence, cost, given, groups
                            )
                            loss.backward()
                            assert loss.isfinite()
            assert losses.grad.isfinite().all()
            print(sys.modules["drago.kernels._v4"], sys.modules["sklearn"], "scipy" in sys.modules)
            """
        )
    )
    assert out == "None None False"


def test_says_what_is_missing():
    out = finish(
        run(
            """
            import sys
            sys.modules["torch"] = None
            try:
                import drago.torch_engine
            except ModuleNotFoundError as error:
                print(error)
            """
        )
    )
    assert out == (
        "drago.torch_engine needs PyTorch, which is not installed: pip install 'drago[torch]'."
    )


WORKER = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import drago
    from drago.torch_engine import RobustLoss

    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    given = torch.load(f"{folder}/given.pt")
    found = []
    for cut, equal in ((3, False), (4, True)):
        rows = slice(None, cut) if rank == 0 else slice(cut, None)
        for name, weighted, grouped in (("cvar", False, False), ("esrm", True, False),
                                        (drago.Grouped("kl_ball"), True, True)):
            torch.manual_seed(0)
            model = DistributedDataParallel(torch.nn.Linear(3, 1, dtype=torch.float64))
            criterion = RobustLoss(
                name, shift_cost=0.1, process_group=dist.group.WORLD, equal_batches=equal
            )
            loss = criterion(
                (model(given["x"][rows])[:, 0] - given["y"][rows]) ** 2,
                given["weight"][rows] if weighted else None,
                given["groups"][rows] if grouped else None,
            )
            loss.backward()
            found.append((loss.detach(), model.module.weight.grad, model.module.bias.grad))
    torch.save(found, f"{folder}/found{rank}.pt")
    dist.destroy_process_group()
    # Threads of torch's own sometimes abort a process that ends in the usual way.
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_two_processes_find_the_gradient_of_the_whole_batch(tmp_path):
    """Through DistributedDataParallel, with batches of 3 and 5 rows and of 4 and 4."""
    torch.manual_seed(1)
    given = {
        "x": torch.randn(8, 3, dtype=torch.float64),
        "y": torch.randn(8, dtype=torch.float64),
        "weight": torch.rand(8, dtype=torch.float64),
        "groups": torch.tensor([0, 0, 1, 2, 2, 0, 1, 5]),
    }
    torch.save(given, tmp_path / "given.pt")
    processes = [run(WORKER, str(rank), str(tmp_path)) for rank in range(2)]
    for process in processes:
        finish(process)
    found = [torch.load(tmp_path / f"found{rank}.pt") for rank in range(2)]
    runs = [("cvar", False, False), ("esrm", True, False), (drago.Grouped("kl_ball"), True, True)]
    for k, (name, weighted, grouped) in enumerate(2 * runs):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1, dtype=torch.float64)
        loss = robust_loss(
            (model(given["x"])[:, 0] - given["y"]) ** 2,
            name,
            shift_cost=0.1,
            sample_weight=given["weight"] if weighted else None,
            groups=given["groups"] if grouped else None,
        )
        loss.backward()
        for value, weight, bias in (found[0][k], found[1][k]):
            torch.testing.assert_close(value, loss.detach(), rtol=1e-12, atol=0)
            torch.testing.assert_close(weight, model.weight.grad, rtol=1e-11, atol=1e-14)
            torch.testing.assert_close(bias, model.bias.grad, rtol=1e-11, atol=1e-14)
