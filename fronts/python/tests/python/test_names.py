"""Names: making, removing and listing them, attributes, where the bytes of files are."""

import errno
import itertools
import os
import pathlib
import random
import stat

import pytest
from threads import in_threads

import weft


def put(fs, path, data=b""):
    fs.write_bytes(path, data)
    return path


@pytest.fixture
def file(connection, path):
    """A file that is there."""
    return put(connection, path, b"abc")


# Paths


def test_paths_are_str_bytes_or_path_like(connection, folder):
    class PathLike:
        def __fspath__(self):
            return f"{folder}/a".encode()

    for path in (f"{folder}/a", f"{folder}/a".encode(), pathlib.PurePosixPath(folder) / "a", PathLike()):
        assert connection.write_bytes(path, b"abc") == 3
        assert connection.stat(f"{folder}/a").st_size == 3
        with connection.open(path) as opened:
            assert opened.read() == "abc"
        connection.rename(path, f"{folder}/b")
        connection.unlink(f"{folder}/b")


def test_other_kinds_of_path_are_a_type_error(connection):
    for path in (None, 3, 2.5, ["/"], object(), bytearray(b"/")):
        for call in (connection.stat, connection.open, connection.mkdir, connection.scandir, connection.exists):
            with pytest.raises(TypeError):
                call(path)


def test_a_path_without_a_slash_is_below_the_root(connection, folder):
    put(connection, f"{folder[1:]}/a", b"xyz")
    assert connection.read_bytes(f"{folder}/a") == b"xyz"
    assert connection.read_bytes(f"{folder}/./../{folder[1:]}//a") == b"xyz"


def test_a_name_that_is_not_utf8_comes_back_as_it_was(connection, folder):
    name = b"caf\xe9-\xff\xfe"
    text = os.fsdecode(name)
    assert put(connection, folder.encode() + b"/" + name, b"abc")
    assert connection.listdir(folder) == [text]
    (entry,) = connection.scandir(folder)
    assert os.fsencode(entry.name) == name and entry.path == f"{folder}/{text}" == os.fspath(entry)
    assert connection.read_bytes(entry) == connection.read_bytes(entry.path) == b"abc"
    connection.symlink(name, f"{folder}/link")
    assert os.fsencode(connection.readlink(f"{folder}/link")) == name
    assert connection.read_bytes(f"{folder}/link") == b"abc"
    connection.setxattr(entry, b"user.\xff", b"value")
    assert connection.listxattr(entry) == ["user.\udcff"]
    assert connection.getxattr(entry, "user.\udcff") == b"value"
    assert [names for _, _, names in connection.walk(folder)][0].count(text) == 1
    with pytest.raises(OSError) as told:
        connection.mkdir(entry.path)
    assert told.value.errno == errno.EEXIST
    connection.unlink(f"{folder}/{text}")
    assert connection.listdir(folder) == ["link"]


def test_names_of_any_characters_are_kept(connection, folder):
    names = ["ä", "漢字", "a b", "\n", "\\", "*", "-", "~", "😀" * 63, "n" * 255]
    for name in names:
        put(connection, f"{folder}/{name}")
    assert sorted(connection.listdir(folder)) == sorted(names)


# What fails


LONG = "n" * 256

FAILURES = [
    (lambda fs, at: fs.stat(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.lstat(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.stat(f"{at}/file/below"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.stat(f"{at}/loop"), OSError, errno.ELOOP),
    (lambda fs, at: fs.stat(f"{at}/dangling"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.stat(f"{at}/{LONG}"), OSError, errno.ENAMETOOLONG),
    (lambda fs, at: fs.open(f"{at}/none/file", "w"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.open(f"{at}/file/below", "w"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.open(f"{at}/full", "r"), IsADirectoryError, errno.EISDIR),
    (lambda fs, at: fs.open(f"{at}/{LONG}", "w"), OSError, errno.ENAMETOOLONG),
    (lambda fs, at: fs.read_bytes(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.write_bytes(f"{at}/full", b""), IsADirectoryError, errno.EISDIR),
    (lambda fs, at: fs.mkdir(f"{at}/file"), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.mkdir(f"{at}/full"), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.mkdir(f"{at}/none/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.mkdir(f"{at}/file/new"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.mkdir(f"{at}/{LONG}"), OSError, errno.ENAMETOOLONG),
    (lambda fs, at: fs.makedirs(f"{at}/full"), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.makedirs(f"{at}/file", exist_ok=True), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.makedirs(f"{at}/file/a/b"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.rmdir(f"{at}/full"), OSError, errno.ENOTEMPTY),
    (lambda fs, at: fs.rmdir(f"{at}/file"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.rmdir(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.rmtree(f"{at}/file"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.rmtree(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.rmtree(f"{at}/link"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.unlink(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.unlink(f"{at}/full"), IsADirectoryError, errno.EISDIR),
    (lambda fs, at: fs.remove(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.rename(f"{at}/none", f"{at}/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.rename(f"{at}/file", f"{at}/none/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.rename(f"{at}/file", f"{at}/full"), IsADirectoryError, errno.EISDIR),
    (lambda fs, at: fs.rename(f"{at}/full", f"{at}/file"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.rename(f"{at}/empty", f"{at}/full"), OSError, errno.ENOTEMPTY),
    (lambda fs, at: fs.rename(f"{at}/full", f"{at}/full/below"), OSError, errno.EINVAL),
    (lambda fs, at: fs.rename(f"{at}/empty", f"{at}/file", replace=False), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.replace(f"{at}/none", f"{at}/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.exchange(f"{at}/file", f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.link(f"{at}/none", f"{at}/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.link(f"{at}/file", f"{at}/empty"), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.link(f"{at}/full", f"{at}/new"), PermissionError, errno.EPERM),
    (lambda fs, at: fs.symlink("x", f"{at}/file"), FileExistsError, errno.EEXIST),
    (lambda fs, at: fs.symlink("x", f"{at}/none/new"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.readlink(f"{at}/file"), OSError, errno.EINVAL),
    (lambda fs, at: fs.readlink(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.listdir(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.listdir(f"{at}/file"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: fs.scandir(f"{at}/file"), NotADirectoryError, errno.ENOTDIR),
    (lambda fs, at: list(fs.walk(f"{at}/none")), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.chmod(f"{at}/none", 0o600), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.chown(f"{at}/none", -1, -1), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.utime(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.truncate(f"{at}/none", 0), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.truncate(f"{at}/full", 0), IsADirectoryError, errno.EISDIR),
    (lambda fs, at: fs.getxattr(f"{at}/file", "user.none"), OSError, errno.ENODATA),
    (lambda fs, at: fs.getxattr(f"{at}/none", "user.a"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.removexattr(f"{at}/file", "user.none"), OSError, errno.ENODATA),
    (lambda fs, at: fs.setxattr(f"{at}/file", "user.none", b"", os.XATTR_REPLACE), OSError, errno.ENODATA),
    (lambda fs, at: fs.setxattr(f"{at}/file", "nonsense", b""), OSError, errno.EOPNOTSUPP),
    (lambda fs, at: fs.setxattr(f"{at}/full", "weft.layout", b"nonsense"), OSError, errno.EINVAL),
    (lambda fs, at: fs.setxattr(f"{at}/file", "weft.layout", b"width=2"), OSError, errno.ENOTEMPTY),
    (lambda fs, at: fs.removexattr(f"{at}/full", "weft.layout"), PermissionError, errno.EPERM),
    (lambda fs, at: fs.locate(f"{at}/none"), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.locate_many([f"{at}/file"] * 40 + [f"{at}/none"]), FileNotFoundError, errno.ENOENT),
    (lambda fs, at: fs.locate(f"{at}/full"), OSError, errno.EINVAL),
]


def tree_of(fs, at):
    """What is below a directory, with attributes, as it can be compared."""
    return sorted(
        (entry.name, entry.inode(), told.st_mode, told.st_size, told.st_nlink)
        for directory, _, _ in fs.walk(at)
        for entry in fs.scandir(directory)
        for told in [entry.stat(follow_symlinks=False)]
    )


def test_each_failure_has_its_class_and_number_and_changes_nothing(connection, folder):
    put(connection, f"{folder}/file", b"abc")
    connection.mkdir(f"{folder}/empty")
    connection.mkdir(f"{folder}/full")
    put(connection, f"{folder}/full/a")
    connection.symlink("full", f"{folder}/link")
    connection.symlink("loop", f"{folder}/loop")
    connection.symlink("nowhere", f"{folder}/dangling")
    before = tree_of(connection, folder)
    assert len(before) == 7
    others = []
    for index, (call, kind, number) in enumerate(FAILURES):
        failure = None
        try:
            call(connection, folder)
        except OSError as told:
            failure = told
        if (type(failure), failure and failure.errno) != (kind, number):
            others.append((index, kind.__name__, errno.errorcode[number], failure))
        assert tree_of(connection, folder) == before, f"failure {index}"
    assert others == []


def test_a_path_that_ends_with_a_slash_is_that_of_a_directory(connection, file, folder):
    assert connection.isdir(f"{folder}/") and connection.listdir(f"{folder}//") == ["file"]
    for call in (
        lambda: connection.open(f"{file}/"),
        lambda: connection.open(f"{file}/", "w"),
        lambda: connection.stat(f"{file}/"),
        lambda: connection.chmod(f"{file}/", 0),
        lambda: connection.unlink(f"{file}/"),
        lambda: connection.rename(f"{file}/", f"{folder}/new"),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    assert connection.read_bytes(file) == b"abc"


def test_a_failure_says_what_was_tried_on_what(connection, folder):
    with pytest.raises(FileNotFoundError, match=f"stat {folder}/none: no such file or directory"):
        connection.stat(f"{folder}/none")
    with pytest.raises(FileNotFoundError, match=f"open {folder}/none"):
        connection.open(f"{folder}/none")


def test_arguments_out_of_range_are_refused(connection, file):
    for kind, call in (
        (ValueError, lambda: connection.truncate(file, -1)),
        (ValueError, lambda: connection.access(file, 8)),
        (ValueError, lambda: connection.chown(file, -2, -1)),
        (ValueError, lambda: connection.chown(file, -1, 2**32)),
        (ValueError, lambda: connection.setxattr(file, "user.a", b"", 4)),
        (ValueError, lambda: connection.utime(file, (1, 2), ns=(1, 2))),
        (ValueError, lambda: connection.utime(file, (1,))),
        (ValueError, lambda: connection.utime(file, (float("nan"), 0))),
        (OverflowError, lambda: connection.utime(file, ns=(2**63, 0))),
        (OverflowError, lambda: connection.truncate(file, 2**63)),
        (OverflowError, lambda: connection.chmod(file, -1)),
        (TypeError, lambda: connection.setxattr(file, "user.a", "text")),
        (TypeError, lambda: connection.mkdir(file, "700")),
        (ValueError, lambda: connection.scandir("/").split(0)),
    ):
        with pytest.raises(kind):
            call()
    assert connection.stat(file).st_size == 3 and connection.listxattr(file) == []


# Making, renaming and removing


def test_directories_are_made_and_removed(connection, folder):
    umask = os.umask(0o022)
    os.umask(umask)
    connection.mkdir(f"{folder}/a", 0o750)
    told = connection.stat(f"{folder}/a")
    assert stat.S_ISDIR(told.st_mode) and told.st_mode & 0o7777 == 0o750 & ~umask and told.st_nlink == 2
    assert connection.stat(folder).st_nlink == 3
    connection.mkdir(f"{folder}/a/b/")
    connection.rmdir(f"{folder}/a/b")
    connection.rmdir(f"{folder}/a/")
    assert connection.listdir(folder) == []


def test_makedirs_makes_what_is_missing(connection, folder):
    connection.makedirs(f"{folder}/a/b//c")
    assert connection.isdir(f"{folder}/a/b/c")
    connection.makedirs(f"{folder}/a/d/e/".encode())
    assert sorted(connection.listdir(f"{folder}/a")) == ["b", "d"]
    connection.makedirs(f"{folder}/a/b", exist_ok=True)
    connection.makedirs("/", exist_ok=True)
    connection.makedirs(f"{folder[1:]}/relative/x")
    assert connection.isdir(f"{folder}/relative/x")


def test_makedirs_by_many_threads_fails_for_none(connection, folder):
    failures = []

    def work(number):
        try:
            connection.makedirs(f"{folder}/a/b/c/d/{number}", exist_ok=True)
            connection.makedirs(f"{folder}/a/b/c/e", exist_ok=True)
        except OSError as failure:
            failures.append(failure)

    in_threads(work, range(8))
    assert failures == []
    assert sorted(connection.listdir(f"{folder}/a/b/c/d")) == [str(number) for number in range(8)]


def test_rmtree_removes_all_but_what_links_lead_to(connection, folder):
    connection.makedirs(f"{folder}/tree/a/b")
    connection.mkdir(f"{folder}/kept")
    put(connection, f"{folder}/kept/file")
    for number in range(5):
        put(connection, f"{folder}/tree/a/{number}")
    connection.symlink("../../kept", f"{folder}/tree/a/link")
    connection.symlink("nowhere", f"{folder}/tree/dangling")
    connection.rmtree(f"{folder}/tree")
    assert connection.listdir(folder) == ["kept"]
    assert connection.listdir(f"{folder}/kept") == ["file"]


def test_rmtree_of_a_link_leaves_what_it_leads_to(connection, folder):
    connection.mkdir(f"{folder}/kept")
    put(connection, f"{folder}/kept/file")
    connection.symlink("kept", f"{folder}/link")
    with pytest.raises(OSError):
        connection.rmtree(f"{folder}/link")
    assert connection.listdir(f"{folder}/kept") == ["file"]
    assert sorted(connection.listdir(folder)) == ["kept", "link"]


def test_rename_replaces_unless_it_is_told_not_to(connection, folder):
    put(connection, f"{folder}/a", b"a")
    put(connection, f"{folder}/b", b"b")
    with pytest.raises(FileExistsError):
        connection.rename(f"{folder}/a", f"{folder}/b", replace=False)
    assert connection.read_bytes(f"{folder}/a") == b"a" and connection.read_bytes(f"{folder}/b") == b"b"
    connection.rename(f"{folder}/a", f"{folder}/b")
    assert connection.listdir(folder) == ["b"] and connection.read_bytes(f"{folder}/b") == b"a"
    connection.rename(f"{folder}/b", f"{folder}/c", replace=False)
    put(connection, f"{folder}/d", b"d")
    connection.replace(f"{folder}/c", f"{folder}/d")
    assert connection.listdir(folder) == ["d"] and connection.read_bytes(f"{folder}/d") == b"a"


def test_exchange_gives_each_the_other_name(connection, folder):
    put(connection, f"{folder}/a", b"a")
    connection.mkdir(f"{folder}/b")
    connection.exchange(f"{folder}/a", f"{folder}/b")
    assert connection.isdir(f"{folder}/a") and connection.read_bytes(f"{folder}/b") == b"a"


def test_links_are_names_of_one_file(connection, folder):
    put(connection, f"{folder}/a", b"abc")
    connection.link(f"{folder}/a", f"{folder}/b")
    one, two = connection.stat(f"{folder}/a"), connection.stat(f"{folder}/b")
    assert one.st_ino == two.st_ino and two.st_nlink == 2
    connection.unlink(f"{folder}/a")
    assert connection.read_bytes(f"{folder}/b") == b"abc" and connection.stat(f"{folder}/b").st_nlink == 1


def test_a_symlink_leads_to_its_target(connection, folder):
    put(connection, f"{folder}/a", b"abc")
    connection.symlink("a", f"{folder}/link")
    assert connection.readlink(f"{folder}/link") == connection.readlink(f"{folder}/link".encode()) == "a"
    assert connection.read_bytes(f"{folder}/link") == b"abc"
    assert stat.S_ISLNK(connection.lstat(f"{folder}/link").st_mode)
    assert stat.S_ISLNK(connection.stat(f"{folder}/link", follow_symlinks=False).st_mode)
    assert connection.stat(f"{folder}/link").st_ino == connection.stat(f"{folder}/a").st_ino
    connection.link(f"{folder}/link", f"{folder}/second")
    assert connection.readlink(f"{folder}/second") == "a"
    connection.unlink(f"{folder}/link")
    assert connection.read_bytes(f"{folder}/a") == b"abc"


def test_an_operation_on_two_file_systems_is_not_possible_by_a_path(connection, other, folder):
    put(connection, f"{folder}/a", b"abc")
    other.rename(f"{folder}/a", f"{folder}/b")
    assert connection.listdir(folder) == ["b"]


# Attributes


def test_exists_isdir_and_isfile_tell_what_is_there(connection, folder):
    put(connection, f"{folder}/file")
    connection.mkdir(f"{folder}/directory")
    for name, target in (("to-file", "file"), ("to-directory", "directory"), ("dangling", "none"), ("loop", "loop")):
        connection.symlink(target, f"{folder}/{name}")
    told = {
        name: (connection.exists(path), connection.isdir(path), connection.isfile(path))
        for name in ("file", "directory", "to-file", "to-directory", "dangling", "loop", "none", "file/below", LONG)
        for path in [f"{folder}/{name}"]
    }
    assert told == {
        "file": (True, False, True),
        "directory": (True, True, False),
        "to-file": (True, False, True),
        "to-directory": (True, True, False),
        "dangling": (False, False, False),
        "loop": (False, False, False),
        "none": (False, False, False),
        "file/below": (False, False, False),
        LONG: (False, False, False),
    }


def test_stat_has_all_that_os_stat_has(connection, file, tmp_path):
    (tmp_path / "twin").write_bytes(b"abc")
    told, twin = connection.stat(file), os.stat(tmp_path / "twin")
    assert type(told) is os.stat_result
    assert stat.S_ISREG(told.st_mode) and told.st_size == 3 and told.st_nlink == 1
    assert (told.st_uid, told.st_gid) == (os.geteuid(), os.getegid())
    assert told.st_blksize > 0 and told.st_blocks * 512 >= 3 and told.st_rdev == 0
    assert abs(told.st_mtime - twin.st_mtime) < 60 and told.st_mtime_ns // 10**9 == int(told.st_mtime)
    assert tuple(told) == (
        told.st_mode,
        told.st_ino,
        told.st_dev,
        1,
        told.st_uid,
        told.st_gid,
        3,
        told.st_atime_ns // 10**9,
        told.st_mtime_ns // 10**9,
        told.st_ctime_ns // 10**9,
    )


def test_two_connections_tell_of_one_file(connection, other, file):
    assert os.path.samestat(connection.stat(file), other.stat(file))


def test_chmod_sets_all_bits(connection, file):
    for mode in (0o600, 0o4711, 0o1777, 0):
        connection.chmod(file, mode)
        assert connection.stat(file).st_mode & 0o7777 == mode
    connection.chmod(file, stat.S_IFREG | 0o640)
    assert connection.stat(file).st_mode == stat.S_IFREG | 0o640


def test_chown_leaves_what_is_minus_one(connection, file):
    connection.chown(file, -1, -1)
    connection.chown(file, os.geteuid(), os.getegid())
    told = connection.stat(file)
    assert (told.st_uid, told.st_gid) == (os.geteuid(), os.getegid())
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            connection.chown(file, 12345, -1)
        return
    connection.chown(file, 12345, -1)
    connection.chown(file, -1, 54321)
    told = connection.stat(file)
    assert (told.st_uid, told.st_gid) == (12345, 54321)


def test_chown_and_utime_of_a_link_leave_its_target(connection, file, folder):
    connection.symlink("file", f"{folder}/link")
    before = connection.stat(file)
    connection.chown(f"{folder}/link", os.geteuid(), os.getegid(), follow_symlinks=False)
    connection.utime(f"{folder}/link", ns=(1, 2), follow_symlinks=False)
    assert connection.lstat(f"{folder}/link").st_mtime_ns == 2
    assert connection.stat(file).st_mtime_ns == before.st_mtime_ns
    connection.utime(f"{folder}/link", ns=(3, 4))
    assert connection.stat(file).st_mtime_ns == 4


def test_access_asks_for_each_bit(connection, file):
    connection.chmod(file, 0o444)
    assert connection.access(file, os.F_OK) and connection.access(file, os.R_OK)
    assert not connection.access(file, os.X_OK) and not connection.access(file, os.R_OK | os.X_OK)
    connection.chmod(file, 0o744)
    assert connection.access(file, os.R_OK | os.W_OK | os.X_OK)
    assert not connection.access(f"{file}-none", os.F_OK)


def test_utime_takes_seconds_or_nanoseconds(connection, file):
    connection.utime(file, ns=(1_000_000_005, -1))
    told = connection.stat(file)
    assert (told.st_atime_ns, told.st_mtime_ns) == (1_000_000_005, -1)
    assert (int(told.st_atime), told[stat.ST_MTIME]) == (1, -1)
    connection.utime(file, (1.5, -2.25))
    told = connection.stat(file)
    assert (told.st_atime_ns, told.st_mtime_ns) == (1_500_000_000, -2_250_000_000)
    connection.utime(file)
    with connection.open(f"{file}-2", "wb"):
        assert 0 <= connection.stat(f"{file}-2").st_mtime - connection.stat(file).st_mtime < 60


def test_utime_of_any_float_sets_the_nanoseconds_that_os_utime_sets(connection, file, tmp_path):
    dice, twin = random.Random(2), tmp_path / "twin"
    twin.touch()
    for seconds in [dice.uniform(-1e9, 2e9) for _ in range(100)] + [1_795_805_666, 0, -1, 0.1, 1e-10]:
        connection.utime(file, (seconds, -seconds))
        os.utime(twin, (seconds, -seconds))
        mine, builtin = connection.stat(file), os.stat(twin)
        assert (mine.st_atime_ns, mine.st_mtime_ns) == (builtin.st_atime_ns, builtin.st_mtime_ns), seconds


def test_the_float_of_a_time_is_that_of_os_stat(connection, file, tmp_path):
    dice, twin = random.Random(3), tmp_path / "twin"
    twin.touch()
    for ns in [dice.randrange(-(10**18), 2 * 10**18) for _ in range(100)]:
        connection.utime(file, ns=(ns, ns))
        os.utime(twin, ns=(ns, ns))
        assert connection.stat(file).st_mtime == os.stat(twin).st_mtime, ns


def test_truncate_cuts_and_extends(connection, file):
    connection.truncate(file, 2)
    assert connection.read_bytes(file) == b"ab"
    connection.truncate(file, 5)
    assert connection.read_bytes(file) == b"ab\0\0\0"


def test_statvfs_tells_of_space(connection, file):
    told = connection.statvfs()
    assert type(told) is os.statvfs_result
    assert 0 < told.f_bavail <= told.f_bfree <= told.f_blocks
    assert told.f_frsize > 0 and told.f_namemax == 255 and told.f_files > 0


# Extended attributes


def test_extended_attributes_are_kept(connection, file, folder):
    for path in (file, folder):
        assert connection.listxattr(path) == []
        connection.setxattr(path, "user.a", b"value\0\xff")
        connection.setxattr(path, b"user.b", bytearray(b""))
        assert sorted(connection.listxattr(path)) == ["user.a", "user.b"]
        assert connection.getxattr(path, b"user.a") == b"value\0\xff" and connection.getxattr(path, "user.b") == b""
        with pytest.raises(FileExistsError):
            connection.setxattr(path, "user.a", b"", os.XATTR_CREATE)
        connection.setxattr(path, "user.a", memoryview(b"other"), os.XATTR_REPLACE)
        assert connection.getxattr(path, "user.a") == b"other"
        connection.removexattr(path, "user.a")
        assert connection.listxattr(path) == ["user.b"]


def test_a_directory_hands_its_layout_down(connection, folder):
    connection.setxattr(folder, "weft.layout", b"width=2 stripe=64KiB")
    connection.mkdir(f"{folder}/below")
    put(connection, f"{folder}/below/file", bytes(200 << 10))
    for path in (folder, f"{folder}/below", f"{folder}/below/file"):
        assert connection.getxattr(path, "weft.layout") == b"width=2 stripe=65536"
    assert [piece.length for piece in connection.locate(f"{folder}/below/file")] == [64 << 10] * 3 + [8 << 10]
    with connection.open(f"{folder}/whole", "wb", 0, hints="whole") as file:
        file.write(bytes(200 << 10))
    assert len(connection.locate(f"{folder}/whole")) == 1
    connection.setxattr(folder, "weft.layout", b"whole")
    assert connection.getxattr(folder, "weft.layout") == b"whole"


# Listings


@pytest.fixture(scope="module")
def crowd(connection):
    """A directory of 1,000 files, each as long as its number says."""
    path = f"/crowd-{os.getpid()}"
    connection.mkdir(path)
    for number in range(1000):
        put(connection, f"{path}/f{number}", bytes(number))
    yield path
    connection.rmtree(path)


NAMES = sorted(f"f{number}" for number in range(1000))


def test_a_listing_has_each_name_once(connection, crowd):
    assert sorted(connection.listdir(crowd)) == NAMES
    assert sorted(connection.listdir(crowd.encode())) == NAMES
    assert sorted(entry.name for entry in connection.scandir(crowd)) == NAMES


def test_attributes_come_with_the_names_if_they_are_asked_for(connection, crowd, folder):
    for entry in connection.scandir(crowd, with_stat=True):
        told = entry.stat()
        assert told.st_size == int(entry.name[1:]) and told.st_ino == entry.inode()
        assert stat.S_ISREG(told.st_mode)
    put(connection, f"{folder}/a", b"a")
    (then,) = connection.scandir(folder, with_stat=True)
    (now,) = connection.scandir(folder)
    put(connection, f"{folder}/a", b"longer")
    assert then.stat().st_size == 1 and now.stat().st_size == 6


@pytest.mark.parametrize("with_stat", [False, True])
@pytest.mark.parametrize("parts", [1, 4, 7, 64])
def test_the_parts_of_a_listing_have_each_name_once(connection, crowd, parts, with_stat):
    whole = connection.scandir(crowd, with_stat=with_stat)
    lists = whole.split(parts)
    assert len(lists) == parts and list(whole) == []
    seen = {}
    in_threads(lambda number: seen.update({number: [entry.name for entry in lists[number]]}), range(parts))
    assert sorted(itertools.chain.from_iterable(seen.values())) == NAMES
    if parts <= 7:
        assert all(1000 / parts * 0.5 < len(names) < 1000 / parts * 1.5 + 1 for names in seen.values())


def test_one_listing_may_be_read_by_several_threads(connection, crowd):
    listing, seen = connection.scandir(crowd), []
    in_threads(lambda _: seen.extend(entry.name for entry in listing), range(4))
    assert sorted(seen) == NAMES


def test_a_part_can_be_split_again(connection, crowd):
    lists = [small for part in connection.scandir(crowd).split(3) for small in part.split(3)]
    assert sorted(entry.name for part in lists for entry in part) == NAMES


def test_a_listing_that_was_closed_has_no_names_left(connection, crowd):
    with connection.scandir(crowd) as listing:
        assert next(listing).name in NAMES
        assert iter(listing) is listing
    assert list(listing) == []
    listing.close()


def test_entries_tell_their_types(connection, folder):
    put(connection, f"{folder}/file", b"abc")
    connection.mkdir(f"{folder}/directory")
    for name, target in (("to-file", "file"), ("to-directory", "directory"), ("dangling", "none")):
        connection.symlink(target, f"{folder}/{name}")
    for with_stat in (False, True):
        entries = {entry.name: entry for entry in connection.scandir(folder, with_stat=with_stat)}
        assert {name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for name, entry in entries.items()} == {
            "file": (False, True, False),
            "directory": (True, False, False),
            "to-file": (False, True, True),
            "to-directory": (True, False, True),
            "dangling": (False, False, True),
        }
        for name, entry in entries.items():
            is_link = name not in ("file", "directory")
            assert entry.is_dir(follow_symlinks=False) == (name == "directory")
            assert entry.is_file(follow_symlinks=False) == (name == "file")
            told = entry.stat(follow_symlinks=False)
            assert told.st_ino == entry.inode() == connection.lstat(entry.path).st_ino
            assert stat.S_ISLNK(told.st_mode) == is_link
        assert entries["to-file"].stat().st_size == 3
        with pytest.raises(FileNotFoundError):
            entries["dangling"].stat()


def test_an_entry_is_a_path(connection, folder):
    put(connection, f"{folder}/a", b"abc")
    for listed in (folder, f"{folder}/", folder[1:], folder.encode()):
        (entry,) = connection.scandir(listed)
        assert isinstance(entry, weft.DirEntry) and entry.path == os.path.join(os.fsdecode(listed), "a")
        assert connection.read_bytes(entry) == b"abc" and entry.path in repr(entry)
    assert folder[1:] in [entry.name for entry in connection.scandir()] and folder[1:] in connection.listdir()


# Walks


@pytest.fixture
def twins(connection, folder, tmp_path):
    """The same tree there and in a local directory."""
    for directory in ("a", "a/b", "a/b/c", "d", "e"):
        connection.mkdir(f"{folder}/{directory}")
        (tmp_path / directory).mkdir()
    for file in ("1", "a/2", "a/3", "a/b/c/4", "d/5"):
        put(connection, f"{folder}/{file}")
        (tmp_path / file).touch()
    for link, target in {
        "a/to-d": "../d",
        "d/to-c": "../a/b/c",
        "e/to-file": "../1",
        "e/below-a-file": "../1/x",
        "dangling": "none",
        "loop": "loop",
    }.items():
        connection.symlink(target, f"{folder}/{link}")
        (tmp_path / link).symlink_to(target)
    return folder, str(tmp_path)


def walked(walk, top):
    return [(directory[len(top) :], sorted(below), sorted(files)) for directory, below, files in walk]


@pytest.mark.parametrize("topdown", [True, False])
@pytest.mark.parametrize("followlinks", [True, False])
def test_a_walk_is_that_of_os_walk(connection, twins, topdown, followlinks):
    mine = walked(connection.walk(twins[0], topdown, followlinks=followlinks), twins[0])
    builtin = walked(os.walk(twins[1], topdown, None, followlinks), twins[1])
    assert sorted(mine) == sorted(builtin)
    order = [directory for directory, _, _ in mine]
    for parent, child in itertools.product(order, order):
        if child.startswith(f"{parent}/"):
            assert (order.index(parent) < order.index(child)) == topdown


def test_a_walk_skips_directories_that_are_taken_out(connection, twins):
    seen = []
    for directory, below, _ in connection.walk(twins[0]):
        seen.append(directory[len(twins[0]) :])
        below[:] = sorted(set(below) - {"b", "d"}, reverse=True)
    assert seen == ["", "/e", "/a"]


# Where bytes are


def test_many_files_are_located_in_their_order(connection, crowd):
    numbers = random.Random(4).sample(range(1000), 300)
    located = connection.locate_many(f"{crowd}/f{number}" for number in numbers)
    assert len(located) == 300
    for number, pieces in zip(numbers, located):
        (piece,) = pieces
        assert isinstance(piece, weft.Location) and (piece.offset, piece.length) == (0, number)
        assert (piece.node in (0, 1) and piece.local and piece.host != "") if number else piece.node is None
    assert connection.locate_many([]) == []
    assert connection.locate(f"{crowd}/f7".encode()) == connection.locate_many([f"{crowd}/f7"])[0]
