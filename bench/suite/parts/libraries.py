"""Libraries: the C library and the Python package beside the native client that both are made of."""

import statistics
import sys

from package import ROOT, Package, built
from rounds import Samples, measure
from table import Goals, at_least, at_most, gigabytes, ratio, spread, table
from weft import Weft

SHARE = 3
REQUEST = 8 << 20
# Small calls of a batch, of which each program makes five.
CALLS = 40_000
# In each round. They do the same system calls: only many of each, in turn, tell them apart from noise.
REPEATS = 3
WAYS = {"auto": "descriptor", "tcp": "tcp"}
GOAL_OF_RATE = 0.95
GOAL_OF_TIME = 1.10
SOURCES = ROOT / "bench" / "libraries"


class Rust:
    """The native client."""

    def __init__(self, session):
        self.words, self.environment = ["bench-library"], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class C:
    """The shared library, and its program linked with it."""

    def __init__(self, session):
        self.session, self.environment = session, {}
        self.library, program = session.directory / "c-library", session.directory / "library-client"
        self.words = [program]

    def __enter__(self):
        built(self.session, "libweft_c.a", "weft-c")
        self.session.call(ROOT / "scripts" / "c-library.sh", self.session.options.binaries, self.library)
        lib = self.library / "lib"
        self.session.call("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", self.words[0], SOURCES / "client.c",
                          "-I", self.library / "include", "-L", lib, f"-Wl,-rpath,{lib}", "-lweft")
        return self

    def __exit__(self, *_):
        pass


class Python:
    """The package, by the Python that runs the suite."""

    def __init__(self, session):
        self.session = session
        self.words = [sys.executable, "-B", SOURCES / "client.py"]

    def __enter__(self):
        self.environment = self.session.service(Package).environment
        self.session.call(sys.executable, "-B", "-c", "import weft", environment=self.environment)
        return self

    def __exit__(self, *_):
        pass


LANGUAGES = {"rust": Rust, "c": C, "python": Python}
SHOWN = {"rust": "Rust", "c": "C", "python": "Python"}


def run(session):
    samples = Samples()
    ways = ["auto"] if session.options.quick else list(WAYS)
    measure(session, [(WAYS[way], cells(session, way)) for way in ways], samples, REPEATS)
    return text(session, samples, ways)


def cells(session, way):
    size = max(session.options.size_mib << 20, REQUEST) // REQUEST * REQUEST

    def of(language):
        def cell():
            client = session.service(LANGUAGES[language])
            weft = session.service(Weft)
            words = [*client.words, weft.name, size, REQUEST, CALLS]
            if language == "python":
                words.append(session.plain)
            found = session.json(*words, environment={**client.environment, "WEFT_TRANSPORT": way})
            return {(language, way, what): statistics.median(values) for what, values in found.items()}
        return cell

    return [(SHOWN[language], of(language)) for language in LANGUAGES]


def text(session, samples, ways):
    goals, large, small = Goals(), [], []
    for way in ways:
        for language in LANGUAGES:
            large += [large_row(samples, goals, way, what, language) for what in ("write", "read")]
            small += [small_row(samples, goals, way, what, language) for what in ("stat", "pread")]
    return (
        "## Libraries: C and Python beside the native client, one process, one node\n\n"
        f"{session.options.size_mib} MiB of one file are written over and read in requests of {REQUEST >> 20} MiB of "
        f"the caller's own memory. The goal is {GOAL_OF_RATE:.2f} of Rust's rate.\n\n"
        + table(["way", "by", "operation", ">GB/s", ">spread", ">by : Rust", "goal met"], large)
        + "\nNanoseconds per call, in a loop, of what is cached: `stat` of a path, `pread` of 4 KiB into the caller's "
        f"memory. The goal of C is {GOAL_OF_TIME:.2f} of Rust's time. Beside Python are `os.stat` and `os.preadv` of "
        "the same on tmpfs, in the same process.\n\n"
        + table(["way", "by", "call", ">ns", ">spread", ">by : Rust", "goal met", ">`os` ns", ">by : `os`"], small)
        + "\n" + goals.line() + samples.reasons()
    )


def large_row(samples, goals, way, what, language):
    key = (language, way, what)
    share = None if language == "rust" else samples.ratio(key, ("rust", way, what))
    verdict = "-" if language == "rust" else goals.judge(at_least(share, GOAL_OF_RATE))
    return [WAYS[way], SHOWN[language], what, gigabytes(samples.median(key)), spread(samples.spread(key), gigabytes),
            "-" if language == "rust" else ratio(share), verdict]


def small_row(samples, goals, way, what, language):
    key, beside = (language, way, what), (language, way, f"os {what}")
    share = samples.ratio(key, ("rust", way, what))
    verdict = goals.judge(at_most(share, GOAL_OF_TIME)) if language == "c" else "-"
    row = [WAYS[way], SHOWN[language], what, nanoseconds(samples.median(key)), spread(samples.spread(key), nanoseconds),
           "-" if language == "rust" else ratio(share), verdict]
    if language != "python":
        return [*row, "-", "-"]
    return [*row, nanoseconds(samples.median(beside)), ratio(samples.ratio(key, beside))]


def nanoseconds(value):
    return None if value is None else f"{value:.0f}"
