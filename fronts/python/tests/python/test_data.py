"""What data scientists use, over weft://."""

import io

import fsspec
import numpy
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
import zarr


@pytest.fixture
def url(name, folder):
    return f"weft://{name}{folder}"


@pytest.fixture(scope="module")
def table():
    numbers = numpy.random.default_rng(1)
    return pandas.DataFrame(
        {
            "key": numpy.arange(50_000),
            "value": numbers.normal(size=50_000),
            "text": [f"text {number % 977}" for number in range(50_000)],
        }
    )


def test_pandas_writes_and_reads(url, table):
    table.to_parquet(f"{url}/table.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{url}/table.parquet"), table)
    table.to_csv(f"{url}/table.csv", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/table.csv"), table)
    table.to_pickle(f"{url}/table.pickle.gz")
    pandas.testing.assert_frame_equal(pandas.read_pickle(f"{url}/table.pickle.gz"), table)
    with pytest.raises(FileNotFoundError):
        pandas.read_parquet(f"{url}/none.parquet")


def test_pyarrow_writes_and_scans_a_partitioned_data_set(name, folder, table):
    fs = fsspec.filesystem("weft", host=name)
    arrow = pyarrow.Table.from_pandas(table.assign(part=table.key % 5))
    pyarrow.parquet.write_to_dataset(arrow, f"{folder}/set", partition_cols=["part"], filesystem=fs)
    data = pyarrow.dataset.dataset(f"{folder}/set", filesystem=fs, partitioning="hive")
    assert len(data.files) == 5
    part = data.to_table(columns=["key", "value"], filter=pyarrow.dataset.field("part") == 3)
    expected = table[table.key % 5 == 3].set_index("key").value
    pandas.testing.assert_series_equal(part.to_pandas().set_index("key").value.sort_index(), expected)
    # Only the bytes of a column are read: by its footer, and in any order.
    wrapped = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    found = wrapped.get_file_info(pyarrow.fs.FileSelector(f"{folder}/set", recursive=True))
    assert sum(info.type == pyarrow.fs.FileType.File for info in found) == 5
    assert pyarrow.parquet.read_table(data.files[0], columns=["text"], filesystem=wrapped).num_rows == 10_000
    wrapped.delete_dir(f"{folder}/set")
    assert not fs.exists(f"{folder}/set")


def test_zarr_writes_and_reads_chunks(url):
    store = zarr.storage.FsspecStore.from_url(f"{url}/array.zarr", storage_options={"auto_mkdir": True})
    numbers = numpy.random.default_rng(2).normal(size=(300, 400))
    array = zarr.create_array(store, shape=numbers.shape, chunks=(64, 64), dtype=numbers.dtype)
    array[:] = numbers
    array[10:20, 300:] = 7
    numbers[10:20, 300:] = 7
    again = zarr.open_array(zarr.storage.FsspecStore.from_url(f"{url}/array.zarr", read_only=True), mode="r")
    numpy.testing.assert_array_equal(again[:], numbers)
    numpy.testing.assert_array_equal(again[7:99:3, 250:390], numbers[7:99:3, 250:390])


def test_numpy_saves_loads_and_reads_into_arrays(connection, folder):
    numbers = numpy.arange(100_000, dtype="f8").reshape(100, 1000)
    with connection.open(f"{folder}/numbers.npy", "wb") as file:
        numpy.save(file, numbers)
    numpy.testing.assert_array_equal(numpy.load(io.BytesIO(connection.read_bytes(f"{folder}/numbers.npy"))), numbers)
    with connection.open(f"{folder}/numbers.npy", "rb") as file:
        numpy.testing.assert_array_equal(numpy.load(file), numbers)
    with connection.open(f"{folder}/raw", "w+b", 0) as file:
        file.write(numbers)
        back = numpy.empty_like(numbers)
        assert file.pread_into(back, 0) == numbers.nbytes
        numpy.testing.assert_array_equal(back, numbers)
        rows = numpy.empty((3, 1000))
        assert file.read_list([(rows[row], 8000 * (10 * row)) for row in range(3)]) == rows.nbytes
        numpy.testing.assert_array_equal(rows, numbers[:21:10])
