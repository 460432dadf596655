"""fsspec's own abstract tests."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, name):
        return fsspec.filesystem("weft", host=name, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs, folder):
        return folder


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass
