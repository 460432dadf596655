"""Random operations on file:// and weft://: results and errors are the same. And on os and a connection."""

import errno
import os
import random
import stat

import fsspec
import pytest

OPERATIONS = 3000
SEEDS = [1, 2, 3]


class Twins:
    """Does the same in two places, and compares what comes of it."""

    def __init__(self, one, one_root, other, other_root):
        self.places = [(one, one_root), (other, other_root)]

    def do(self, what, *paths, call):
        told = [self.told(call, place, [root + path for path in paths], root) for place, root in self.places]
        assert told[0] == told[1], f"{what} {paths}"

    @staticmethod
    def told(call, place, paths, root):
        try:
            result = call(place, *paths)
        except OSError as error:
            # Where file:// names a path only, there is no number.
            return type(error).__name__
        except (ValueError, IsADirectoryError) as error:
            return type(error).__name__
        if isinstance(result, list):
            result = sorted(str(each).removeprefix(root) for each in result)
        elif isinstance(result, dict):
            result = {str(key).removeprefix(root): value for key, value in sorted(result.items())}
        return result


def path_of(choice):
    """One of few paths, so that operations meet."""
    return "".join(f"/{choice.choice('abc')}" for _ in range(choice.randint(1, 3)))


def written(mode, size, seed):
    def write(fs, path):
        with fs.open(path, mode) as file:
            file.write(random.Random(seed).randbytes(size))

    return write


def told_of(fs, path):
    info = fs.info(path)
    is_file = info["type"] == "file"
    return info["type"], info["size"] if is_file else None, stat.S_IMODE(info["mode"]), info["islink"]


def read_parts(seed):
    def read(fs, path):
        choice, parts = random.Random(seed), []
        with fs.open(path, "rb") as file:
            for _ in range(5):
                file.seek(choice.randint(0, 5000))
                parts.append(file.read(choice.randint(0, 3000)))
        return tuple(parts)

    return read


@pytest.mark.parametrize("seed", SEEDS)
def test_weft_does_what_file_does(name, folder, tmp_path, seed):
    twins = Twins(fsspec.filesystem("file"), str(tmp_path), fsspec.filesystem("weft", host=name), folder)
    choice = random.Random(seed)
    for _ in range(OPERATIONS):
        path, other, size, number = path_of(choice), path_of(choice), choice.randint(0, 9000), choice.random()
        # A range that ends before it begins file:// reads in ways of its own.
        start = choice.randint(0, 9000)
        end = choice.choice([None, start + choice.randint(0, 5000)])
        what, paths, call = choice.choice(
            [
                ("mkdir", [path], lambda fs, path: fs.mkdir(path, create_parents=False)),
                ("mkdir -p", [path], lambda fs, path: fs.mkdir(path)),
                ("makedirs", [path], lambda fs, path: fs.makedirs(path, exist_ok=number < 0.5)),
                ("write", [path], written("wb", size, number)),
                ("append", [path], written("ab", size, number)),
                ("create", [path], written("xb", size, number)),
                ("pipe", [path], lambda fs, path: fs.pipe_file(path, b"x" * size)),
                ("touch", [path], lambda fs, path: fs.touch(path, truncate=number < 0.5)),
                ("cat", [path], lambda fs, path: fs.cat_file(path)),
                ("cat part", [path], lambda fs, path: fs.cat_file(path, start, end)),
                ("read", [path], read_parts(number)),
                ("head", [path], lambda fs, path: fs.head(path, 100)),
                ("tail", [path], lambda fs, path: fs.tail(path, 100)),
                ("info", [path], told_of),
                ("exists", [path], lambda fs, path: (fs.exists(path), fs.isfile(path), fs.isdir(path))),
                ("ls", [path], lambda fs, path: fs.ls(path, detail=False)),
                ("find", [path], lambda fs, path: fs.find(path)),
                ("glob", [path], lambda fs, path: fs.glob(path + "/*")),
                ("cp", [path, other], lambda fs, path, other: fs.cp_file(path, other)),
                ("rm", [path], lambda fs, path: fs.rm(path)),
                ("rm -r", [path], lambda fs, path: fs.rm(path, recursive=True)),
                ("rmdir", [path], lambda fs, path: fs.rmdir(path)),
                ("rm_file", [path], lambda fs, path: fs.rm_file(path)),
                ("chmod", [path], lambda fs, path: fs.chmod(path, 0o700 + int(number * 64))),
            ]
        )
        twins.do(what, *paths, call=call)
    tree = lambda fs, path: tuple(  # noqa: E731
        (each.removeprefix(path), info["type"], fs.cat_file(each) if info["type"] == "file" else None)
        for each, info in sorted(fs.find(path, withdirs=True, detail=True).items())
    )
    twins.do("tree", "", call=tree)


class Local:
    """os as a connection has it."""

    def __getattr__(self, name):
        return getattr(os, name)

    isdir, exists = staticmethod(os.path.isdir), staticmethod(os.path.exists)

    @staticmethod
    def open(path, mode, buffering):
        return open(path, mode, buffering)


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def write_at(fs, path, offset, data):
    with fs.open(path, "r+b", 0) as file:
        file.seek(offset)
        return file.write(data), file.tell(), file.seek(0, os.SEEK_END)


def read_all(fs, path):
    with fs.open(path, "rb", 0) as file:
        return file.read()


def make(fs, path, mode):
    with fs.open(path, mode, 0) as file:
        return file.write(b"made"), file.tell()


def told(fs, path, follow_symlinks):
    found = fs.stat(path, follow_symlinks=follow_symlinks)
    is_directory = stat.S_ISDIR(found.st_mode)
    return found.st_mode, None if is_directory else found.st_size, found.st_nlink


@pytest.mark.parametrize("seed", SEEDS)
def test_a_connection_does_what_os_does(connection, folder, tmp_path, seed):
    places = [(Local(), str(tmp_path)), (connection, folder)]
    choice = random.Random(seed)
    for _ in range(OPERATIONS):
        path, other, number = path_of(choice), path_of(choice), choice.randint(0, 20_000)
        data, follows = choice.randbytes(choice.randint(0, 5000)), choice.random() < 0.5
        what, call = choice.choice(
            [
                ("mkdir", lambda fs, root: fs.mkdir(root + path)),
                ("make w", lambda fs, root: make(fs, root + path, "wb")),
                ("make x", lambda fs, root: make(fs, root + path, "xb")),
                ("make a", lambda fs, root: make(fs, root + path, "ab")),
                ("write", lambda fs, root: write_at(fs, root + path, number, data)),
                ("read", lambda fs, root: read_all(fs, root + path)),
                ("truncate", lambda fs, root: fs.truncate(root + path, number)),
                ("stat", lambda fs, root: told(fs, root + path, follows)),
                ("access", lambda fs, root: fs.access(root + path, number % 8)),
                ("listdir", lambda fs, root: sorted(fs.listdir(root + path))),
                ("rename", lambda fs, root: fs.rename(root + path, root + other)),
                ("link", lambda fs, root: fs.link(root + path, root + other)),
                ("symlink", lambda fs, root: fs.symlink("." + path, root + other)),
                ("readlink", lambda fs, root: fs.readlink(root + path)),
                ("unlink", lambda fs, root: fs.unlink(root + path)),
                ("rmdir", lambda fs, root: fs.rmdir(root + path)),
                ("chmod", lambda fs, root: fs.chmod(root + path, 0o700 + number % 64)),
                ("utime", lambda fs, root: fs.utime(root + path, ns=(number, 7 * number))),
                ("mtime", lambda fs, root: fs.stat(root + path).st_mtime_ns > 1 << 50),
                ("exists", lambda fs, root: (fs.exists(root + path), fs.isdir(root + path))),
            ]
        )
        one, two = (outcome(lambda: call(fs, root)) for fs, root in places)
        assert one == two, f"{what} {path} {other} {number}"
