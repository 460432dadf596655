"""What the tests share: the file system that the harness has started, and a directory in it for each test."""

import itertools
import os

import pytest

import weft

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def name():
    return os.environ["WEFT_TEST_NAME"]


@pytest.fixture(scope="session")
def connection(name):
    with weft.connect(name) as fs:
        yield fs


@pytest.fixture(scope="session")
def other(name):
    """A second connection: another client."""
    with weft.connect(name) as fs:
        yield fs


@pytest.fixture
def folder(connection):
    """A new directory, which ends with the test."""
    path = f"/test-{os.getpid()}-{next(_NUMBERS)}"
    connection.mkdir(path)
    yield path
    connection.rmtree(path)


@pytest.fixture
def path(folder):
    """A path at which there is nothing yet."""
    return f"{folder}/file"


@pytest.fixture
def raw(connection, path):
    """A file without a buffer, to read and write."""
    with connection.open(path, "w+b", 0) as file:
        yield file


@pytest.fixture
def theirs(other, raw, path):
    """The same file, opened by another client."""
    with other.open(path, "r+b", 0) as file:
        yield file
