"""Parquet and Arrow: what is read is what pandas holds."""

import datetime
import decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drago
from drago.files.blocks import SourceChangedError
from source_checks import SMALL, check_sums, features, files_in, whole

pa = pytest.importorskip("pyarrow", reason="sources of tables need pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(2)
N = 4000
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N),
        "b": RNG.normal(size=N).astype(np.float32),
        "count": RNG.integers(-5, 1000, N),
        "flag": RNG.integers(0, 2, N).astype(bool),
        "colour": pd.Categorical(RNG.choice(["red", "green", "blue"], N)),
        "town": RNG.choice(["x", "y"], N),
        "y": RNG.normal(size=N),
        "label": RNG.choice(["yes", "no"], N),
        "weight": RNG.uniform(0.5, 2.0, N),
        "sex": RNG.choice(["F", "M"], N),
    }
)
FEATURES = ["a", "b", "count", "flag", "colour", "town"]
NAMES = ("a", "b", "count", "flag", "colour=blue", "colour=green", "colour=red", "town=x", "town=y")


def expected(frame, names=FEATURES):
    """The features by pandas."""
    return pd.get_dummies(
        frame[names], columns=[name for name in names if name in ("colour", "town")],
        prefix_sep="=", dtype=float,
    ).astype(float)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The frame in three files of several row groups."""
    path = tmp_path_factory.mktemp("parquet")
    for k, (start, stop) in enumerate([(0, 1500), (1500, 1501), (1501, N)]):
        table = pa.Table.from_pandas(FRAME[start:stop], preserve_index=False)
        pq.write_table(table, path / f"{k}.parquet", row_group_size=400)
    return path


@pytest.mark.parametrize("limit", [SMALL, "1GB"])
def test_a_folder_of_files(tmp_path, folder, limit):
    source = drago.read_parquet(
        folder, "y", features=FEATURES, sample_weight="weight", groups=["sex", "town"],
        memory_limit=limit, cache_dir=tmp_path,
    )  # fmt: skip
    blocks = source.open("squared")
    assert blocks.feature_names == NAMES
    found = whole(blocks)
    np.testing.assert_array_equal(features(blocks), expected(FRAME)[list(NAMES)])
    np.testing.assert_array_equal(found["y"], FRAME["y"])
    np.testing.assert_array_equal(found["sample_weight"], FRAME["weight"])
    crossed = drago.cross_groups(FRAME[["sex", "town"]], min_share=0.0)
    np.testing.assert_array_equal(blocks.group_names[found["groups"]], crossed)
    check_sums(blocks)
    assert (len(blocks.ends) > 1) == (limit == SMALL)


def test_ways_to_name_files(tmp_path, folder):
    whole_folder = drago.read_parquet(folder, "y", features="a").open("squared")
    for path in (
        str(folder),
        folder / "*.parquet",
        sorted(folder.glob("*.parquet")),
        [folder],
        ds.dataset(folder),
    ):
        blocks = drago.read_parquet(path, "y", features=["a"]).open("squared")
        np.testing.assert_array_equal(features(blocks), features(whole_folder))
    one = drago.read_parquet(folder / "1.parquet", "y", features="a").open("squared")
    assert one.n_samples == 1
    with pytest.raises(FileNotFoundError):
        drago.read_parquet(tmp_path / "nothing.parquet", "y")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        drago.read_parquet(tmp_path / "*.parquet", "y")


def test_hive_partitions_are_columns(tmp_path):
    pq.write_to_dataset(
        pa.Table.from_pandas(FRAME[["a", "y", "town"]], preserve_index=False), tmp_path / "hive",
        partition_cols=["town"],
    )  # fmt: skip
    blocks = drago.read_parquet(tmp_path / "hive", "y").open("squared")
    assert blocks.feature_names == ("a", "town=x", "town=y")
    by_town = FRAME.sort_values("town", kind="stable")
    np.testing.assert_array_equal(features(blocks), expected(by_town, ["a", "town"]))


def test_filters(folder):
    rows = FRAME[(FRAME["a"] > 0) & (FRAME["sex"] == "F")]
    lists = [("a", ">", 0), ("sex", "==", "F")]
    for filters in (lists, (ds.field("a") > 0) & (ds.field("sex") == "F")):
        source = drago.read_parquet(folder, "y", features=FEATURES, filters=filters)
        np.testing.assert_array_equal(features(source.open("squared")), expected(rows))


def test_labels_of_any_kind(folder):
    for target in ("label", "flag", "colour"):
        source = drago.read_parquet(folder, target, features="a")
        blocks = source.open("multinomial")
        names = np.unique(np.asarray(FRAME[target]))
        np.testing.assert_array_equal(blocks.classes, names)
        np.testing.assert_array_equal(blocks.classes[whole(blocks)["y"]], FRAME[target])
    with pytest.raises(ValueError, match="column 'label' must hold numbers, but its type is"):
        drago.read_parquet(folder, "label", features="a").open("squared")


@pytest.mark.parametrize(
    "columns, expected_dtype",
    [
        (["b", "flag", "colour"], np.float32),
        (["b", "small"], np.float32),
        (["b", "count"], np.float64),
        (["small"], np.float64),
        (["a", "b"], np.float64),
    ],
)
def test_precision_is_that_of_the_source(columns, expected_dtype):
    table = pa.Table.from_pandas(FRAME.assign(small=np.int8(3)), preserve_index=False)
    blocks = drago.from_arrow(table, "y", features=columns).open("squared")
    assert features(blocks).dtype == expected_dtype
    asked = drago.from_arrow(table, "y", features=columns, dtype="float32").open("squared")
    assert features(asked).dtype == np.float32


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2024, 1, 1)] * 3,
        [datetime.datetime(2024, 1, 1)] * 3,
        [decimal.Decimal("1.5")] * 3,
        [[1.0], [2.0], [3.0]],
        [b"x", b"y", b"z"],
        [None, None, None],
    ],
    ids=["date", "time", "decimal", "nested", "bytes", "null"],
)
def test_other_types_are_refused_by_name(values):
    table = pa.table({"when": values, "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"column 'when' has the type .*, which is no feature"):
        drago.from_arrow(table, "y")
    assert drago.from_arrow(table.append_column("x", table["y"]), "y", features="x")


def with_nulls():
    frame = FRAME[["a", "b", "count", "town", "y"]].copy()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for name, count in (("a", 3), ("count", 5), ("town", 7)):
        values = table[name].to_pylist()
        for k in range(count):
            values[500 * k + 1] = None
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table[name].type))
    return table


@pytest.mark.parametrize("name, count", [("a", 3), ("count", 5), ("town", 7)])
def test_nulls_are_counted(name, count):
    table = with_nulls()
    with pytest.raises(ValueError, match=f"column '{name}' has {count} missing values; give fill="):
        drago.from_arrow(table, "y", features=name).open("squared")
    with pytest.raises(ValueError, match=f"column '{name}' has {count} missing values; drop"):
        drago.from_arrow(table, name, features="b").open("multinomial")


def test_nulls_are_filled():
    table = with_nulls()
    source = drago.from_arrow(table, "y", fill={"a": -1.5, "count": 7, "town": "none"})
    frame = table.to_pandas()
    frame = frame.assign(
        a=frame["a"].fillna(-1.5), count=frame["count"].fillna(7), town=frame["town"].fillna("none")
    )
    blocks = source.open("squared")
    assert blocks.feature_names == ("a", "b", "count", "town=none", "town=x", "town=y")
    np.testing.assert_array_equal(features(blocks), expected(frame, ["a", "b", "count", "town"]))
    numbers = drago.from_arrow(table, "y", features=["a", "count"], fill=0.5).open("squared")
    np.testing.assert_array_equal(
        features(numbers), table.select(["a", "count"]).to_pandas().fillna(0.5)
    )


def test_nan_is_filled_too_and_otherwise_refused(tmp_path):
    table = pa.table({"x": [1.0, np.nan, 3.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="first in column 'x' of row 1"):
        drago.from_arrow(table, "y").open("squared")
    blocks = drago.from_arrow(table, "y", fill=0.0).open("squared")
    assert features(blocks).tolist() == [[1.0], [0.0], [3.0]]


def test_too_many_words():
    table = pa.table({"id": [f"n{k}" for k in range(50)], "y": np.arange(50.0)})
    with pytest.raises(ValueError, match="column 'id' has more than 20 different words"):
        drago.from_arrow(table, "y", max_categories=20).open("squared")
    assert drago.from_arrow(table, "y").open("squared").n_features == 50


def test_a_reader_is_read_once():
    table = pa.Table.from_pandas(FRAME[["a", "b", "town", "y"]], preserve_index=False)
    source = drago.from_arrow(table.select(["a", "b", "y"]).to_reader(), "y", standardize=True)
    blocks = source.open("squared")
    assert source.open("squared") is blocks
    np.testing.assert_allclose(features(blocks).std(axis=0), 1.0, rtol=1e-6)
    with pytest.raises(ValueError, match="was read already"):
        list(source.batches(None, labels=False))
    with pytest.raises(ValueError, match="can be read once only, and the words of 'town' need"):
        drago.from_arrow(table.to_reader(), "y")


def test_frames_with_the_stream_interface():
    polars = pytest.importorskip("polars")
    blocks = drago.from_arrow(polars.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0]}), "y").open(
        "squared"
    )
    assert features(blocks).tolist() == [[1.0], [2.0]]
    with pytest.raises(TypeError, match="data must be a Dataset"):
        drago.from_arrow([1, 2, 3], "y")


def test_the_index_of_pandas_is_no_feature(tmp_path):
    FRAME[["a", "y"]].sort_values("a").to_parquet(tmp_path / "x.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "x.parquet").names
    source = drago.read_parquet(tmp_path / "x.parquet", "y")
    assert source.open("squared").feature_names == ("a",)


def test_names_that_are_not_there(folder):
    with pytest.raises(ValueError, match="there is no column 'z' of parquet"):
        drago.read_parquet(folder, "z")
    with pytest.raises(ValueError, match="fill names no column 'z'"):
        drago.read_parquet(folder, "y", fill={"z": 1.0})
    with pytest.raises(ValueError, match="must not hold the target 'y'"):
        drago.read_parquet(folder, "y", features=["y"])


def test_a_source_reads_no_rows_until_it_is_opened(folder, monkeypatch):
    source = drago.read_parquet(folder, "y")
    assert repr(source).startswith(f"Source(parquet {folder}, memory_limit='")
    monkeypatch.setattr("drago.sources.tables.TableReader._scan", None)
    repr(drago.read_parquet(folder, "y"))


@pytest.mark.parametrize("keep", [False, True])
def test_files_that_change(tmp_path, keep):
    path = tmp_path / "x.parquet"
    first = pa.table({"x": np.arange(20000.0), "y": np.zeros(20000)})
    pq.write_table(first, path)
    source = drago.read_parquet(
        path, "y", memory_limit=SMALL, cache_dir=tmp_path / "c", keep_cache=keep
    )
    assert features(source.open("squared"))[-1, 0] == 19999.0
    pq.write_table(pa.table({"x": np.arange(20000.0) + 1.0, "y": np.zeros(20000)}), path)
    with pytest.raises(SourceChangedError, match=r"x\.parquet was changed or is gone"):
        source.open("squared")
    again = drago.read_parquet(
        path, "y", memory_limit=SMALL, cache_dir=tmp_path / "c", keep_cache=keep
    )
    assert features(again.open("squared"))[-1, 0] == 20000.0


def test_files_that_change_while_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(20000.0), "y": np.zeros(20000)}), path)
    source = drago.read_parquet(path, "y", memory_limit=SMALL, cache_dir=tmp_path / "c")
    plain = type(source._reader)._batch

    def touched(self, batch, labels):
        path.touch()
        return plain(self, batch, labels)

    monkeypatch.setattr(type(source._reader), "_batch", touched)
    with pytest.raises(SourceChangedError, match=r"x\.parquet was changed or is gone"):
        source.open("squared")
    assert files_in(tmp_path / "c") == []


values = st.one_of(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30),
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.lists(st.text(max_size=3), min_size=1, max_size=30),
    st.lists(st.one_of(st.none(), st.text("abc", max_size=2)), min_size=1, max_size=30),
    st.lists(st.one_of(st.none(), st.floats(-9.0, 9.0)), min_size=1, max_size=30),
)


@given(values, st.booleans(), st.integers(1, 7))
def test_encoders_against_a_slow_twin(column, as_dictionary, chunk):
    array = pa.chunked_array(
        [column[k : k + chunk] for k in range(0, len(column), chunk)],
        type=pa.array(column).type if any(value is not None for value in column) else pa.string(),
    )
    if as_dictionary and pa.types.is_string(array.type):
        array = array.dictionary_encode()
    is_words = any(isinstance(value, str) for value in column) or all(v is None for v in column)
    fill = "?" if is_words else -0.25
    table = pa.table({"x": array, "y": np.arange(float(len(column)))})
    blocks = drago.from_arrow(table, "y", fill=fill).open("squared")
    filled = [fill if value is None else value for value in column]
    if is_words:
        words = sorted({*filled, fill})
        rows = [[float(value == word) for word in words] for value in filled]
        assert blocks.feature_names == tuple(f"x={word}" for word in words)
    else:
        rows = [[float(value)] for value in filled]
    assert features(blocks).tolist() == rows


@given(st.lists(st.one_of(st.text("ab", max_size=2)), min_size=1, max_size=40), st.integers(1, 9))
def test_labels_against_numpy(labels, chunk):
    array = pa.chunked_array([labels[k : k + chunk] for k in range(0, len(labels), chunk)])
    table = pa.table({"x": np.ones(len(labels)), "y": array})
    blocks = drago.from_arrow(table, "y").open("multinomial")
    names, codes = np.unique(np.array(labels), return_inverse=True)
    assert blocks.classes.tolist() == names.tolist()
    assert whole(blocks)["y"].tolist() == codes.tolist()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*rows.parquet; check the path"):
        drago.read_parquet(tmp_path / "rows.parquet", target="y")
