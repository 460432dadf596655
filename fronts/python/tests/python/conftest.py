"""What the tests share: the file system that the harness has started, and a directory in it for each test."""

import faulthandler
import itertools
import os

import pytest

import weft

_NUMBERS = itertools.count()
# Longest test, seconds: then all threads show where they are, and the run ends.
_PATIENCE = 60


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


@pytest.fixture(autouse=True)
def watchdog():
    """Ends a run that hangs."""
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
