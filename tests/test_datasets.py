"""Loading, downloading, preparing and drawing data sets."""

import contextlib
import hashlib
import http.server
import io
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

from drago import datasets
from drago.datasets import DatasetContentError, DatasetDownloadError, load, make_synthetic

DATA_DIR = os.environ.get("DRAGO_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA_DIR, reason="DRAGO_DATA_DIR is not set")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty user cache, no DRAGO_DATA_DIR and no proxy."""
    monkeypatch.delenv("DRAGO_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "drago"


@pytest.fixture
def server():
    """A web server on this machine; `pages` maps a path to (headers, body, delay), or to None."""
    pages, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            headers, body, delay = pages[self.path] or ({}, b"", 0.0)
            self.send_response(200 if pages[self.path] else 404)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for start in range(0, len(body), 2**14):
                    self.wfile.write(body[start : start + 2**14])
                    time.sleep(delay)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.pages, httpd.asked = pages, asked
        threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        yield httpd
        httpd.shutdown()


def digest(**arrays):
    """The pinned checksum, written a second time."""
    total = b""
    for key, array in arrays.items():
        total += f"{key}{array.shape}<f8".encode() + np.asarray(array, "<f8").tobytes()
    return hashlib.sha256(total).hexdigest()


def archive(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return buffer.getvalue()


def as_text(table):
    return "".join("  ".join(map(repr, row)) + " \n" for row in table.tolist()) + "\n"


def as_arff(table):
    names = "".join(f"@ATTRIBUTE a{j} REAL\n" for j in range(table.shape[1]))
    rows = "\n".join(",".join(map(repr, row)) for row in table.tolist())
    return f"% comment\n@RELATION test\n{names}@DATA\n{rows}\n".encode()


def as_xlsx(table, prolog=""):
    """A sheet with a header of shared strings, 17 digits, a blank row and a stray column."""
    letters = "ABCDEFGHIJK"
    header = "".join(f'<c r="{a}1" t="s"><v>0</v></c>' for a in letters[: table.shape[1]])
    rows = [f'<row r="1">{header}</row>']
    for i, row in enumerate(table.tolist(), start=2):
        cells = "".join(f'<c r="{a}{i}"><v>{v:.17g}</v></c>' for a, v in zip(letters, row))
        rows.append(f'<row r="{i}">{cells}<c r="AB{i}" s="1"/></row>')
    rows.append(f'<row r="{len(rows) + 1}"><c r="A{len(rows) + 1}" s="2"/></row>')
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = f'<worksheet xmlns="{space}"><sheetData>{"".join(rows)}</sheetData></worksheet>'
    return archive(**{"xl/worksheets/sheet1.xml": prolog + sheet, "xl/charts/sheet1.xml": "<no/>"})


@pytest.fixture
def serve(server, monkeypatch):
    def serve(name, table, body, path, sha256=None):
        entry = datasets._PAPER[name]
        sha256 = sha256 or digest(X=table[:, : entry.shape[1]], y=table[:, entry.target])
        url = f"http://127.0.0.1:{server.server_port}{path}"
        monkeypatch.setitem(datasets._PAPER, name, replace(entry, url=url, sha256=sha256))
        server.pages[path] = {"Content-Length": str(len(body))}, body, 0.0

    return serve


YACHT = np.round(np.random.default_rng(0).normal(size=(40, 7)), 3)
BODY = archive(**{"yacht_hydrodynamics.data": as_text(YACHT)})


@pytest.fixture
def yacht(serve):
    serve("yacht", YACHT, BODY, "/yacht.zip")


@needs_data
@pytest.mark.parametrize("name", datasets._PAPER)
def test_paper_sets_have_their_pinned_content(name):
    data = load(name)
    entry = datasets._PAPER[name]
    assert data.name == name and data.task == entry.task
    assert data.X.shape == entry.shape and data.X.dtype == np.float64
    fields = ("X", "y", "X_val", "y_val", "X_test", "y_test")
    held = [part for part in (getattr(data, field) for field in fields) if part is not None]
    assert len(held) == len(entry.arrays)
    assert digest(**dict(zip(entry.arrays, held))) == entry.sha256
    assert data.y.dtype == (np.int64 if name == "emotion" else np.float64)
    if name in ("acsincome1k", "emotion"):
        np.testing.assert_array_equal(load(name, prepare="paper").X, data.X)


def test_directory_goes_before_cache(cache, tmp_path, monkeypatch, yacht):
    own = tmp_path / "own"
    own.mkdir()
    cache.mkdir()
    np.savez(own / "yacht.npz", X=YACHT[:, :6], y=YACHT[:, 6])
    (cache / "yacht.npz").write_bytes(b"never read")
    monkeypatch.setenv("DRAGO_DATA_DIR", str(own))
    np.testing.assert_array_equal(load("yacht").X, YACHT[:, :6])
    monkeypatch.setenv("DRAGO_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DatasetContentError, match=re.escape(str(cache))):
        load("yacht")


def test_not_found_names_all_three_ways(cache, monkeypatch):
    monkeypatch.setattr(datasets.urllib.request, "urlopen", None)
    monkeypatch.setenv("DRAGO_DATA_DIR", "/no/such/place")
    with pytest.raises(FileNotFoundError) as error:
        load("energy")
    assert type(error.value) is datasets.DatasetNotFoundError
    for part in ("DRAGO_DATA_DIR", "/no/such/place", str(cache), "download=True", "energy.npz"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["concrete", "acsincome1k", "emotion"])
def test_sets_without_download_say_so(name, cache):
    with pytest.raises(FileNotFoundError, match=r"DRAGO_DATA_DIR.*there is no download for it"):
        load(name, download=True)
    assert not cache.exists()


@pytest.mark.skipif(os.name == "nt", reason="POSIX paths")
def test_cache_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for platform, xdg, expected in (
        ("linux", "", "/home/me/.cache/drago"),
        ("linux", "relative", "/home/me/.cache/drago"),
        ("linux", "/some/cache", "/some/cache/drago"),
        ("darwin", "", "/home/me/Library/Caches/drago"),
        ("win32", "", "/home/me/AppData/Local/drago"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(datasets.sys, "platform", platform)
            patch.setenv("XDG_CACHE_HOME", xdg)
            assert datasets.cache_dir() == Path(expected)


def saved(function, *args, **kwargs):
    buffer = io.BytesIO()
    function(buffer, *args, **kwargs)
    return buffer.getvalue()


GOOD = saved(np.savez, X=np.zeros((4, 6)), y=np.zeros(4))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        GOOD[: len(GOOD) // 2],
        GOOD.replace(b"descr", b"dXscr"),
        GOOD,
        saved(np.savez, a=np.zeros(3)),
        saved(np.savez, X=np.array([["a", "b"]]), y=np.zeros(1)),
        saved(np.savez, X=np.array([{}], dtype=object), y=np.zeros(1)),
        saved(np.save, np.zeros((4, 6))),
    ],
)
def test_foreign_file_is_named(content, cache):
    cache.mkdir()
    (cache / "yacht.npz").write_bytes(content)
    with pytest.raises(DatasetContentError, match=r"yacht\.npz is not the data set 'yacht'"):
        load("yacht")


def test_download_then_cache(cache, server, yacht):
    data = load("yacht", download=True)
    np.testing.assert_array_equal(data.X, YACHT[:, :6])
    np.testing.assert_array_equal(data.y, YACHT[:, 6])
    assert os.listdir(cache) == ["yacht.npz"]
    assert server.asked == ["/yacht.zip"]

    np.testing.assert_array_equal(load("yacht").X, data.X)
    load("yacht", download=True)
    assert server.asked == ["/yacht.zip"]


@pytest.mark.parametrize(
    "name", ["yacht", "energy", "kin8nm", pytest.param("power", marks=pytest.mark.slow)]
)
@needs_data
def test_each_format_gives_the_pinned_content(name, cache, serve):
    with np.load(Path(DATA_DIR) / f"{name}.npz") as file:
        X, y = file["X"], file["y"]
    table = np.column_stack([X, X[:, 0], y]) if name == "energy" else np.column_stack([X, y])
    entry = datasets._PAPER[name]
    if name == "yacht":
        body = archive(**{entry.file: as_text(table)})
    elif name == "kin8nm":
        body = as_arff(table)
    else:
        body = archive(**{f"folder/{entry.file}": as_xlsx(table), "Readme.txt": "?"})
    serve(name, table, body, "/" + entry.url.rsplit("/", 1)[1], entry.sha256)
    data = load(name, download=True)
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, y)


def test_xlsx_is_read_unless_it_declares_entities():
    table = np.random.default_rng(0).normal(size=(30, 10))
    np.testing.assert_array_equal(datasets._read_xlsx(as_xlsx(table), 10), table)
    with pytest.raises(ValueError, match="document type"):
        datasets._read_xlsx(as_xlsx(table, '<!DOCTYPE x [<!ENTITY a "aaaa">]>'), 10)


CHANGED = archive(**{"yacht_hydrodynamics.data": as_text(YACHT + np.spacing(YACHT))})
BOMB = archive(**{"yacht_hydrodynamics.data": " " * 10**6})
SHA256 = digest(X=YACHT[:, :6], y=YACHT[:, 6])
LENGTH = {"Content-Length": str(len(BODY))}


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        (None, DatasetDownloadError, "404.*DRAGO_DATA_DIR"),
        ((LENGTH, BODY[:-9], 0.0), DatasetDownloadError, "broke off after"),
        (({}, BODY[:-9], 0.0), DatasetContentError, "nothing was cached"),
        (({}, bytes(2**20), 0.0), DatasetDownloadError, "larger than the limit"),
        (({"Content-Length": "9999999"}, bytes(2**20), 0.0), DatasetDownloadError, "larger than"),
        (({}, BOMB, 0.0), DatasetContentError, "larger than the limit"),
        (({}, archive(other="1"), 0.0), DatasetContentError, "no item named 'yacht_hydro"),
        (({}, CHANGED, 0.0), DatasetContentError, f"SHA-256.* not {SHA256}"),
        (({}, bytes(90_000), 0.15), DatasetDownloadError, "longer than|timed out"),
        (({}, bytes(90_000), 0.9), DatasetDownloadError, "timed out"),
    ],
)
def test_bad_download_leaves_nothing(page, error, words, cache, server, monkeypatch, yacht):
    monkeypatch.setattr(datasets, "_MAX_BYTES", 10**5)
    monkeypatch.setattr(datasets, "_TIMEOUT", 0.4 if page and page[2] else 30.0)
    server.pages["/yacht.zip"] = page
    with pytest.raises(error, match=words):
        load("yacht", download=True)
    assert not cache.exists() or os.listdir(cache) == []


@pytest.mark.parametrize("step", ["savez_compressed", "replace", "fsync"])
def test_interrupted_write_leaves_nothing(step, cache, monkeypatch, yacht):
    def fail(*args, **kwargs):
        assert len(os.listdir(cache)) == 1
        raise KeyboardInterrupt

    owner = np if step == "savez_compressed" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        with pytest.raises(KeyboardInterrupt):
            load("yacht", download=True)
    assert os.listdir(cache) == []
    assert load("yacht", download=True).X.shape == (40, 6)


@needs_data
@pytest.mark.parametrize(
    ("name", "n_train"),
    [("yacht", 244), ("energy", 614), ("concrete", 824), ("kin8nm", 6553), ("power", 7654)],
)
def test_paper_preparation(name, n_train):
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    raw, data = load(name), load(name, prepare="paper")
    drop = 2 if name == "yacht" else 0
    rows = raw.X[drop:], raw.y[drop:]
    X, X_test, y, y_test = train_test_split(*rows, test_size=0.2, random_state=42)
    scaler = StandardScaler().fit(X)
    mean, std = y.mean(), y.std(ddof=1)
    assert data.X.shape == (n_train, raw.X.shape[1]) and data.y.shape == (n_train,)
    np.testing.assert_allclose(data.X, scaler.transform(X), atol=1e-10)
    np.testing.assert_allclose(data.X_test, scaler.transform(X_test), atol=1e-10)
    np.testing.assert_allclose(data.y, (y - mean) / std, atol=1e-12)
    np.testing.assert_allclose(data.y_test, (y_test - mean) / std, atol=1e-12)
    assert ("first two rows" in data.description) == (name == "yacht")


def test_embedded_sets():
    shapes = {"digits": (1797, 64), "breast_cancer": (569, 30), "diabetes": (442, 10)}
    for name, shape in {**shapes, "wine": (178, 13), "iris": (150, 4)}.items():
        data = load(name)
        n_values = len(set(data.y))
        task = "binary" if n_values == 2 else "multiclass" if n_values <= 10 else "regression"
        assert data.task == task and data.X.shape == shape and data.X.dtype == np.float64
        assert data.y.dtype == (np.float64 if task == "regression" else np.int64)


def test_constant_columns_stay_finite():
    raw, data = load("digits"), load("digits", prepare="paper")
    constant = raw.X.std(axis=0) == 0
    assert constant.any()
    assert np.isfinite(data.X).all() and np.isfinite(data.X_test).all()
    assert (data.X[:, constant] == 0).all()
    varies = data.X.std(axis=0) > 0
    np.testing.assert_allclose(data.X[:, varies].std(axis=0), 1)


def parts(data):
    X = data.X if isinstance(data.X, np.ndarray) else data.X.toarray()
    return X, data.y, data.groups


def test_synthetic_is_deterministic():
    for options in ({"tail_heaviness": 0.3}, {"density": 0.2, "task": "multiclass"}):
        options |= {"subgroup_fraction": 0.2, "condition_number": 10.0}
        first, same, other = (make_synthetic(300, 5, random_state=i, **options) for i in (1, 1, 2))
        for a, b, c in zip(parts(first), parts(same), parts(other)):
            np.testing.assert_array_equal(a, b)
            assert (a != c).any()


def test_features_do_not_depend_on_the_target():
    target = {"task": "binary", "subgroup_fraction": 0.5, "tail_heaviness": 1.0}
    a, b = (make_synthetic(100, 4, condition_number=9.0, **k) for k in ({}, target))
    np.testing.assert_array_equal(a.X, b.X)


@pytest.mark.parametrize("density", [None, 0.3])
@pytest.mark.parametrize("condition_number", [1.0, 100.0])
def test_covariance_has_the_condition_number(condition_number, density):
    X, _, _ = parts(make_synthetic(60_000, 5, condition_number=condition_number, density=density))
    assert np.abs(X.mean(axis=0)).max() < 0.05
    values = np.linalg.eigvalsh(np.cov(X.T))
    assert values[-1] / values[0] == pytest.approx(condition_number, rel=0.1)
    assert values.mean() == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(values, np.geomspace(values[0], values[-1], 5), rtol=0.1)
    if density is None and condition_number > 1:
        assert np.abs(np.corrcoef(X.T) - np.eye(5)).max() > 0.2


def test_sparse_features():
    data = make_synthetic(20_000, 50, density=0.1, dtype="float32")
    assert data.X.format == "csr" and data.X.dtype == np.float32 and data.y.dtype == np.float32
    assert data.X.indices.dtype == np.int32 and data.X.has_canonical_format
    assert data.X.nnz == pytest.approx(0.1 * 20_000 * 50, rel=0.01)
    assert np.diff(data.X.indptr).var() == pytest.approx(50 * 0.1 * 0.9, rel=0.05)
    np.testing.assert_allclose(np.bincount(data.X.indices) / 20_000, 0.1, atol=0.01)
    assert make_synthetic(30, 7, density=1.0).X.nnz == 210
    assert make_synthetic(30, 7, density=1e-9).X.shape == (30, 7)


def residuals(data, rows=slice(None)):
    X, y, _ = parts(data)
    coef = np.linalg.lstsq(X[rows], y[rows], rcond=None)[0]
    return coef, y[rows] - X[rows] @ coef


@pytest.mark.parametrize("density", [None, 0.5])
def test_regression_signal_and_noise(density):
    options = {"condition_number": 20.0, "density": density}
    coef, rest = residuals(make_synthetic(40_000, 4, noise=0.5, **options))
    data = make_synthetic(40_000, 4, noise=0.0, **options)
    exact, nothing = residuals(data)
    assert np.abs(nothing).max() < 1e-12
    assert data.y.var() == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(coef, exact, atol=0.05)
    assert rest.std() == pytest.approx(0.5, rel=0.02)
    assert np.mean(rest**4) / np.mean(rest**2) ** 2 == pytest.approx(3, rel=0.1)


def test_tail_heaviness_is_the_tail_index():
    from scipy import stats

    for heaviness in (0.2, 0.5, 1.0):
        clean = make_synthetic(20_000, 3, noise=0.0)
        heavy = make_synthetic(20_000, 3, noise=2.0, tail_heaviness=heaviness)
        errors = (heavy.y - clean.y) / 2.0
        assert stats.kstest(errors, stats.t(1 / heaviness).cdf).pvalue > 0.001
        assert stats.kstest(errors, stats.norm.cdf).pvalue < 1e-6


def test_subgroup_follows_other_coefficients():
    for d in (1, 6):
        data = make_synthetic(10_001, d, subgroup_fraction=0.1, noise=0.0, condition_number=5.0)
        assert data.groups.sum() == 1000 and set(data.groups) == {0, 1}
        assert 0.05 < data.groups[:5000].mean() < 0.15
        coefs, rests = zip(*(residuals(data, data.groups == group) for group in (0, 1)))
        assert max(np.abs(rest).max() for rest in rests) < 1e-12
        assert np.corrcoef(coefs @ data.X.T)[0, 1] < 0.05
    assert (make_synthetic(50, 2).groups == 0).all()
    assert (make_synthetic(50, 2, subgroup_fraction=1.0).groups == 1).all()


def test_classes():
    data = make_synthetic(5000, 4, task="binary", noise=0.0)
    assert data.y.dtype == np.int64 and set(data.y) == {0, 1}
    assert data.y.mean() == pytest.approx(0.5, abs=0.05)
    score = residuals(make_synthetic(5000, 4, noise=0.0))[0]
    np.testing.assert_array_equal(data.y, data.X @ score > 0)
    noisy = make_synthetic(5000, 4, task="binary", noise=1.0)
    assert np.mean(noisy.y != data.y) == pytest.approx(0.25, abs=0.03)  # arctan(1) / pi

    data = make_synthetic(5000, 8, task="multiclass", n_classes=5)
    assert set(data.y) == set(range(5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_synthetic_needs_little_memory(dtype):
    make_synthetic(10, 3, condition_number=2.0, dtype=dtype)
    tracemalloc.start()
    data = make_synthetic(200_000, 30, condition_number=10.0, subgroup_fraction=0.1, dtype=dtype)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.X.dtype == data.y.dtype == dtype
    size = data.X.nbytes + data.y.nbytes + data.groups.nbytes
    assert peak < 1.25 * size + 8 * 200_000


WRONG = {
    "n_samples": (0, 3.0, True),
    "n_features": (-1, "3"),
    "n_classes": (1, None),
    "task": ("rank", None),
    "condition_number": (0.5, np.inf, "1"),
    "tail_heaviness": (-0.1, 1.5, None),
    "subgroup_fraction": (-0.1, 1.5, False),
    "noise": (-1.0, np.nan, np.inf, 1j),
    "density": (0, 2, "0.5"),
    "dtype": ("int8", None),
    "random_state": (-1, 0.5, "seed"),
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, values in WRONG.items() for v in values])
def test_wrong_arguments(name, value):
    words = rf"^{name} must be .*; got {re.escape(repr(value))}\.$"
    with pytest.raises((TypeError, ValueError), match=words):
        make_synthetic(**{"n_samples": 3, "n_features": 3, name: value})


@pytest.mark.parametrize(("name", "value"), [("name", "yatch"), ("prepare", "x"), ("download", 1)])
def test_wrong_arguments_of_load(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*; got {value!r}\.$"):
        load(**{"name": "iris", name: value})


def test_numpy_scalars_and_repr():
    data = make_synthetic(np.int64(5), np.int32(2), noise=np.float32(0.5), dtype=np.dtype("f4"))
    assert data.X.shape == (5, 2) and data.X.dtype == np.float32
    assert repr(data) == "Dataset('synthetic', regression, 5 x 2)"
    with pytest.raises(FrozenInstanceError):
        data.X = None


def test_import_needs_numpy_alone():
    code = (
        "import sys, drago.datasets as d; d.make_synthetic(10, 2);"
        "heavy = {'scipy', 'sklearn', 'numba', 'pandas'} & set(sys.modules); assert not heavy"
    )
    paths = os.pathsep.join([str(Path(datasets.__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
