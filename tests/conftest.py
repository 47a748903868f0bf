"""Set-up shared by all tests; runs before NumPy is imported."""

import os
import shutil
import signal
import subprocess

# Two workers share two cores: a BLAS with threads of its own would only get in the way.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell starts what runs in the background without it, and interrupts are tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "drago",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("drago")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "thinned(keep): of all combinations, one in `keep` is quick; the others are slow"
    )


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items):
    """`cases.thinned` for a test with any number of parametrisations."""
    for item in items:
        mark = item.get_closest_marker("thinned")
        if mark is not None and _place(item) % mark.args[0]:
            item.add_marker(pytest.mark.slow)


def _place(item):
    """The sum of the places along all axes; arguments that are given together are one axis."""
    left, total = dict(item.callspec.params), 0
    for mark in item.iter_markers("parametrize"):
        names, axis = mark.args
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        mine = [left.pop(name) for name in names]
        total += next(k for k, given in enumerate(axis) if _is(mine, given))
    return total + sum(item.callspec.indices[name] for name in left)  # parameters of fixtures


def _is(values, given):
    """Whether an entry of `parametrize` is where these values come from."""
    if isinstance(given, type(pytest.param())):
        given = given.values
    elif len(values) == 1:
        given = (given,)
    return all(a is b for a, b in zip(values, given, strict=True))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB, where one can be made."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)
