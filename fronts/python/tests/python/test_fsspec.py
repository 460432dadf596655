"""weft:// beyond what fsspec's own tests ask."""

import asyncio
import os
import pickle
import shutil

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


def test_a_transaction_writes_whole_files_only(fs, folder):
    fs.pipe_file(f"{folder}/a", b"precious")
    fs.chmod(f"{folder}/a", 0o600)
    with fs.transaction:
        with pytest.raises(FileExistsError):
            fs.open(f"{folder}/a", "xb")
        for mode in ("ab", "r+b", "w+b"):
            with pytest.raises(ValueError):
                fs.open(f"{folder}/a", mode)
        with fs.open(f"{folder}/a", "wb") as file:
            file.write(b"new")
        with fs.open(f"{folder}/{'n' * 255}", "xb") as file:
            file.write(b"new")
    assert fs.cat(f"{folder}/a") == b"new" and fs.info(f"{folder}/a")["mode"] & 0o777 == 0o600
    assert len(fs.ls(folder)) == 2


def test_links_are_listed_as_file_lists_them(fs, folder, tmp_path):
    local = fsspec.filesystem("file")
    for some, root in (fs, folder), (local, str(tmp_path)):
        some.pipe_file(f"{root}/file", b"12345")
        some.mkdir(f"{root}/directory")
        for name, target in ("self", "self"), ("below", "file/x"), ("nowhere", "none"), ("loop", "."), ("to", "file"):
            (fs.weft if some is fs else os).symlink(target, f"{root}/{name}")
    told, found = [], []
    for some, root in (fs, folder), (local, str(tmp_path)):
        infos = {info["name"].removeprefix(root): info for info in some.ls(root, detail=True)}
        # How large a directory is, is not the same.
        sizes = {name: info["size"] for name, info in infos.items() if name not in ("/directory", "/loop")}
        told.append((sizes, {name: (info["type"], info["islink"]) for name, info in infos.items()}))
        found.append(sorted(name.removeprefix(root) for name in some.find(root)))
    assert told[0] == told[1] and found[0] == found[1]


def test_links_are_told_from_what_they_lead_to_and_from_nothing(fs, folder):
    fs.pipe_file(f"{folder}/file", b"")
    for name, target in ("to", "file"), ("nowhere", "none"), ("self", "self"):
        fs.symlink(target, f"{folder}/{name}")
        assert fs.lexists(f"{folder}/{name}") and fs.islink(f"{folder}/{name}")
    assert fs.lexists(f"{folder}/file") and not fs.islink(f"{folder}/file")
    for nothing in ("none", "file/below", "self/below", "n" * 256):
        assert not fs.lexists(f"{folder}/{nothing}") and not fs.islink(f"{folder}/{nothing}")


def test_nothing_is_lost_by_a_move_or_a_copy_that_cannot_be(fs, folder):
    fs.mkdir(f"{folder}/directory")
    fs.pipe_file(f"{folder}/a", b"new")
    fs.pipe_file(f"{folder}/directory/a", b"precious")
    with pytest.raises(FileExistsError):
        fs.mv(f"{folder}/a", f"{folder}/directory")
    assert fs.cat(f"{folder}/directory/a") == b"precious"
    with pytest.raises(shutil.SameFileError):
        fs.cp_file(f"{folder}/a", f"{folder}/a")
    assert fs.cat(f"{folder}/a") == b"new"


def test_patterns_and_directories_are_removed(fs, folder):
    fs.makedirs(f"{folder}/d1/e")
    fs.makedirs(f"{folder}/d2")
    fs.pipe({f"{folder}/d1/e/f": b"", f"{folder}/x": b""})
    with pytest.raises(ValueError):
        fs.rm(f"{folder}/d*")
    fs.rm(f"{folder}/d*", recursive=True)
    assert fs.ls(folder, detail=False) == [f"{folder}/x"]
    fs.makedirs(f"{folder}/d1/e/f")
    fs.rm(f"{folder}/d1", recursive=True, maxdepth=1)
    assert not fs.exists(f"{folder}/d1")


def test_a_file_goes_to_whatever_has_write(fs, folder):
    class Sink:
        parts = []

        def write(self, data):
            self.parts.append(data)

        def close(self):
            pass

        def read(self):
            pass

        def tell(self):
            pass

    fs.pipe_file(f"{folder}/a", b"some")
    fs.get_file(f"{folder}/a", Sink())
    assert b"".join(Sink.parts) == b"some"


def test_coroutines_do_the_same(name, folder):
    async def work():
        fs = fsspec.filesystem("weft", host=name, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*(fs._pipe_file(f"{folder}/{number}", b"%d" % number) for number in range(50)))
        assert await fs._cat_ranges([f"{folder}/7", f"{folder}/8"], 0, 1) == [b"7", b"8"]
        stream = await fs.open_async(f"{folder}/stream", "wb")
        await stream.write(b"one")
        await stream.write(b"two")
        await stream.close()
        other = fsspec.filesystem("weft", host=name, asynchronous=True, auto_mkdir=True, skip_instance_cache=True)
        await (await other.open_async(f"{folder}/new/stream", "wb")).close()
        await fs._rm(f"{folder}/new", recursive=True)
        stream = await fs.open_async(f"{folder}/stream", "rb")
        assert await stream.read(4) == b"onet" and await stream.read() == b"wo"
        await stream.close()
        await fs._rm(f"{folder}/stream")
        await fs._makedirs(f"{folder}/a/b/c")
        await fs._pipe_file(f"{folder}/a/b/d", b"")
        await fs._rm(f"{folder}/a", recursive=True)
        await fs._rm(f"{folder}/4*")
        return len(await fs._ls(folder))

    assert asyncio.run(work()) == 39


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
        works = fs.cat_file(f"{folder}/a") == b"parent" and fs.find(folder) == [f"{folder}/a"]
        works = works and fs.cat_ranges([f"{folder}/a"], 1, 3) == [b"ar"]
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
