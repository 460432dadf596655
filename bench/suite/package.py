"""The Python package, and a Python that has what data scientists use beside it."""

import pathlib
import shutil
import sys

from rounds import CellFailed

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDED = ["pyarrow", "numpy", "fsspec"]
INSTALL_SECONDS = 600


def built(session, file, package):
    """What cargo made of a package."""
    path = session.options.binaries / file
    if not path.exists():
        raise CellFailed(f"there is no {path}: `cargo build --release -p {package}`")
    return path


class Package:
    """The package `weft`, as a wheel would lay it out. Programs import it with `environment`."""

    def __init__(self, session):
        self.session = session
        self.place = session.make("python")
        self.environment = {"PYTHONPATH": str(self.place)}

    def __enter__(self):
        native = built(self.session, "libweft_python.so", "weft-python")
        package = self.place / "weft"
        shutil.copytree(ROOT / "fronts" / "python" / "python" / "weft", package,
                        ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(native, package / "_native.abi3.so")
        return self

    def __exit__(self, *_):
        pass


class DataPython:
    """A Python with pyarrow, NumPy and fsspec: that of the package's tests if it has them, else one that is made beside
    the binaries, and stays for the next run. Its `program` is the interpreter, `versions` a text."""

    def __init__(self, session):
        self.session = session
        binaries = session.options.binaries.resolve()
        self.own = binaries / "bench-python"
        environments = [binaries.parent / "debug" / "python" / "environment", self.own]
        self.candidates = [environment / "bin" / "python" for environment in environments]

    def __enter__(self):
        if not any(self._has_all(candidate) for candidate in self.candidates):
            self.session.say(f"installing {', '.join(NEEDED)} into {self.own}")
            try:
                self.session.call(sys.executable, "-m", "venv", self.own, seconds=INSTALL_SECONDS)
                self.session.call(self.candidates[-1], "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                                  *NEEDED, seconds=INSTALL_SECONDS)
            except CellFailed as reason:
                raise CellFailed(f"no Python with {', '.join(NEEDED)}, and none can be made: {reason}") from None
            if not self._has_all(self.candidates[-1]):
                raise CellFailed(f"{self.own} cannot import {', '.join(NEEDED)}")
        return self

    def __exit__(self, *_):
        pass

    def _has_all(self, program):
        tell = "; ".join(f"print('{name}', {name}.__version__)" for name in NEEDED)
        try:
            out = self.session.call(program, "-B", "-c", f"import platform, {', '.join(NEEDED)}; "
                                    f"print('Python', platform.python_version()); {tell}")
        except CellFailed:
            return False
        self.program, self.versions = program, ", ".join(out.splitlines())
        return True
