"""weft:// beyond what fsspec's own tests ask."""

import asyncio
import os
import pickle

import fsspec
import pytest
from fsspec.callbacks import Callback

import weft


@pytest.fixture(scope="module")
def fs(name):
    return fsspec.filesystem("weft", host=name)


def test_urls_lead_to_file_systems(name, folder):
    with fsspec.open(f"weft://{name}{folder}/a", "wb") as file:
        file.write(b"one")
    fs, path = fsspec.url_to_fs(f"weft://{name}{folder}/a")
    assert type(fs).__module__ == "weft.fsspec" and path == f"{folder}/a"
    assert fs.unstrip_protocol(path) == f"weft://{name}{folder}/a"
    assert fsspec.open_files(f"weft://{name}{folder}/*")[0].path == path
    assert fs is fsspec.filesystem("weft", host=name)
    assert fs._strip_protocol([f"weft://{name}", "a/b/", "weft:/c"]) == ["/", "/a/b", "/c"]
    assert pickle.loads(pickle.dumps(fs)).cat(path) == b"one"


def test_a_file_system_that_does_not_run_is_an_error():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fsspec.filesystem("weft", host="nowhere")


def test_attributes_are_those_of_local_files(fs, folder, tmp_path):
    local = fsspec.filesystem("file")
    for some, path in (fs, folder), (local, str(tmp_path)):
        some.pipe_file(f"{path}/file", b"12345")
        some.symlink(f"{path}/file", f"{path}/link")
        some.mkdir(f"{path}/directory")
    for each in "file", "link", "directory":
        told, other = fs.info(f"{folder}/{each}"), local.info(f"{tmp_path}/{each}")
        assert told.keys() == other.keys()
        same = ["type", "islink", "mode", "uid", "gid"] + (["size", "nlink"] if each != "directory" else [])
        assert {key: told[key] for key in same} == {key: other[key] for key in same}, each
    assert fs.created(f"{folder}/file").tzinfo is not None
    assert abs(fs.modified(f"{folder}/file").timestamp() - fs.info(f"{folder}/file")["mtime"]) < 1e-5


def test_ranges_are_read_in_any_order_and_errors_stand_in_their_places(fs, folder):
    contents = {f"{folder}/{number}": bytes([number]) * 100_000 for number in range(5)}
    fs.pipe(contents)
    paths = [path for path in contents for _ in range(20)]
    starts = [start % 100_000 for start in range(0, 770_000, 7_700)]
    ends = [start + 1000 for start in starts]
    ranges = fs.cat_ranges(paths, starts, ends)
    assert ranges == [contents[path][start:end] for path, start, end in zip(paths, starts, ends)]
    some = f"{folder}/3"
    assert fs.cat_ranges([some] * 4, [-5, None, 99_990, 50], [None, 3, 200_000, 40]) == [
        contents[some][-5:],
        contents[some][:3],
        contents[some][99_990:],
        b"",
    ]
    told = fs.cat_ranges([some, f"{folder}/none"], 0, 2)
    assert told[0] == b"\3\3" and isinstance(told[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([some, f"{folder}/none"], 0, 2, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges([some], [1, 2], [3])


def test_a_transaction_shows_all_at_its_end_or_nothing(fs, folder):
    with fs.transaction:
        with fs.open(f"{folder}/a", "wb") as file:
            file.write(b"new")
        assert not fs.exists(f"{folder}/a")
    assert fs.cat(f"{folder}/a") == b"new" and fs.ls(folder, detail=False) == [f"{folder}/a"]
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open(f"{folder}/a", "wb") as file:
            file.write(b"other")
        raise ZeroDivisionError
    assert fs.cat(f"{folder}/a") == b"new" and fs.ls(folder, detail=False) == [f"{folder}/a"]


def test_coroutines_do_the_same(name, folder):
    async def work():
        fs = fsspec.filesystem("weft", host=name, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*(fs._pipe_file(f"{folder}/{number}", b"%d" % number) for number in range(50)))
        assert await fs._cat_ranges([f"{folder}/7", f"{folder}/8"], 0, 1) == [b"7", b"8"]
        stream = await fs.open_async(f"{folder}/stream", "wb")
        await stream.write(b"one")
        await stream.write(b"two")
        await stream.close()
        stream = await fs.open_async(f"{folder}/stream", "rb")
        assert await stream.read(4) == b"onet" and await stream.read() == b"wo"
        await stream.close()
        await fs._rm(f"{folder}/stream")
        return len(await fs._ls(folder))

    assert asyncio.run(work()) == 50


def test_files_go_in_and_out_with_progress(fs, folder, tmp_path):
    class Progress(Callback):
        def absolute_update(self, value):
            raise AssertionError("each part is told by itself")

    contents = os.urandom(20 << 20)
    (tmp_path / "in").write_bytes(contents)
    progress = Progress()
    fs.put_file(str(tmp_path / "in"), f"{folder}/file", callback=progress)
    assert (progress.size, progress.value) == (len(contents), len(contents))
    progress = Progress()
    fs.get_file(f"{folder}/file", str(tmp_path / "out"), callback=progress)
    assert (progress.size, progress.value) == (len(contents), len(contents))
    assert (tmp_path / "out").read_bytes() == contents
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "in"), f"{folder}/file", mode="create")
    with pytest.raises(FileNotFoundError):
        fs.get_file(f"{folder}/none", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_forked_child_connects_anew(fs, folder):
    fs.pipe_file(f"{folder}/a", b"parent")
    child = os.fork()
    if child == 0:
        works = fs.cat_file(f"{folder}/a") == b"parent"
        fs.pipe_file(f"{folder}/b", b"child")
        os._exit(0 if works else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fs.cat(f"{folder}/b") == b"child"


def test_what_others_change_is_seen_at_once(fs, connection, folder):
    assert not fs.exists(f"{folder}/a") and fs.ls(folder) == []
    connection.write_bytes(f"{folder}/a", b"1")
    assert fs.cat(f"{folder}/a") == b"1" and [entry["size"] for entry in fs.ls(folder)] == [1]
    connection.write_bytes(f"{folder}/a", b"22")
    assert fs.info(f"{folder}/a")["size"] == 2 and fs.cat(f"{folder}/a") == b"22"
    assert isinstance(fs.weft, weft.FileSystem)
