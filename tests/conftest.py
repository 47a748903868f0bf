"""Set-up shared by all tests; runs before NumPy and Numba are imported."""

import hashlib
import os
import tempfile
from pathlib import Path

# Two workers share two cores: a BLAS with threads of its own would only get in the way.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A cached kernel does not notice an edit in a function of another file that it calls, so the
# cache is keyed by the text of all kernels.
_KERNELS = Path(__file__).parent.parent / "src" / "drago" / "kernels"
_DIGEST = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(_KERNELS.glob("*.py"))))
os.environ.setdefault(
    "NUMBA_CACHE_DIR",
    str(Path(tempfile.gettempdir()) / f"drago-kernels-{_DIGEST.hexdigest()[:16]}"),
)

from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "drago",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("drago")
