"""scans.py: what a data scientist does with files, by one way to them; the program of the suite's part `scans`.

    scans.py make DIRECTORY MIB SHARDS   makes the data: `table/*.parquet` of so many MiB, and `shards/*`
    scans.py put DIRECTORY URL           copies it by fsspec
    scans.py remove URL                  removes the copy
    scans.py WORK PLACE                  parquet, loader or random: prints figures, as JSON

PLACE is a directory, or a URL of fsspec: `weft://NAME/directory`. Each work is done once before it is timed, and what
has been read is checked: the sum of a column, the first 8 bytes of a sample.
"""

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time

import fsspec
import numpy

# The package is not installed, so its entry point is not found.
fsspec.register_implementation("weft", "weft.fsspec.WeftFileSystem", clobber=True)

# Timed passes, and when no further one is begun: most take less than a second, some by sshfs ten.
PASSES, PASSES_SECONDS = 8, 5
SEED = 20

TABLE_FILES = 8
# Columns of float64, int64 and text, and bytes of a row: texts have about 18 characters and an offset of 4 bytes.
FLOATS, INTEGERS, TEXTS = 4, 4, 2
ROW_BYTES = 8 * (FLOATS + INTEGERS) + (18 + 4) * TEXTS
FEW_COLUMNS = ["float0", "row"]

SHARD_BYTES = 8 << 20
SAMPLE_BYTES = 1 << 20
BATCH_SAMPLES = 8
PROCESSES = 2

READS = 20_000
READ_BYTES = 4 << 10
BATCH_READS = 256


def make(directory, mib, shards):
    import pyarrow
    import pyarrow.parquet

    directory = pathlib.Path(directory)
    (directory / "table").mkdir(parents=True)
    (directory / "shards").mkdir()
    generator = numpy.random.default_rng(SEED)
    rows = (int(mib) << 20) // TABLE_FILES // ROW_BYTES

    def integers():
        return pyarrow.array(generator.integers(0, 1 << 60, rows))

    for number in range(TABLE_FILES):
        columns = {f"float{index}": pyarrow.array(generator.random(rows)) for index in range(FLOATS)}
        columns["row"] = pyarrow.array(numpy.arange(number * rows, (number + 1) * rows))
        columns |= {f"integer{index}": integers() for index in range(1, INTEGERS)}
        columns |= {f"text{index}": integers().cast("string") for index in range(TEXTS)}
        path = directory / "table" / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False)
    words = SHARD_BYTES // 8
    for number in range(int(shards)):
        # Each word says where it is.
        contents = numpy.arange(number * words, (number + 1) * words, dtype=numpy.int64)
        contents.tofile(directory / "shards" / f"{number:03}")


def word_at(shard, offset):
    """What is there."""
    return (int(shard) * SHARD_BYTES + offset) // 8


def forget(place, below):
    """Has the kernel drop what it has cached of files in a mount; of tmpfs it drops nothing."""
    if "://" not in place:
        for path in pathlib.Path(place, below).iterdir():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rates(place, below, work, amount):
    """Amounts per second, of each pass but the first."""
    found, end = [], time.perf_counter() + PASSES_SECONDS
    while len(found) < 2 or (len(found) <= PASSES and time.perf_counter() < end):
        forget(place, below)
        before = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - before
        found.append((result if amount is None else amount) / seconds)
    return found[1:]


def parquet(place):
    """By Arrow's own access to local files where PLACE is a directory, else by fsspec."""
    import pyarrow.compute
    import pyarrow.dataset
    import pyarrow.fs

    if "://" in place:
        fs, path = fsspec.core.url_to_fs(place)
        fs = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    else:
        fs, path = pyarrow.fs.LocalFileSystem(), place

    def scan(columns=None):
        """Bytes that the columns have in memory, which are those of the file but for headers."""
        table = pyarrow.dataset.dataset(f"{path}/table", filesystem=fs, format="parquet").to_table(columns=columns)
        return table.nbytes

    rows = pyarrow.dataset.dataset(f"{path}/table", filesystem=fs, format="parquet").to_table(columns=["row"])["row"]
    if len(rows) == 0 or pyarrow.compute.sum(rows).as_py() != len(rows) * (len(rows) - 1) // 2:
        sys.exit("wrong contents of the table")
    return {"whole": rates(place, "table", scan, None),
            "columns": rates(place, "table", lambda: scan(FEW_COLUMNS), None)}


def opener(place):
    """A function of a shard's name: the context in which it is open, whose value reads into memory at an offset."""
    if place.startswith("weft://"):
        import weft

        name, _, directory = place.removeprefix("weft://").partition("/")
        fs = weft.connect(name)

        @contextlib.contextmanager
        def opened(shard):
            with fs.open(f"/{directory}/shards/{shard}", "rb", 0) as file:
                yield file.pread_into
    else:
        @contextlib.contextmanager
        def opened(shard):
            descriptor = os.open(f"{place}/shards/{shard}", os.O_RDONLY)
            try:
                yield lambda memory, offset: os.preadv(descriptor, [memory], offset)
            finally:
                os.close(descriptor)
    return opened


def names(place):
    fs, path = fsspec.core.url_to_fs(place)
    return sorted(os.path.basename(name) for name in fs.ls(f"{path}/shards", detail=False))


def begin_process(barrier):
    global together
    together = barrier


def load(place, number):
    """One process of a loader: reads its shards, in another order in each pass. Begin and end of each."""
    opened, generator = opener(place), random.Random(SEED + number)
    mine, times = names(place)[number::PROCESSES], []
    batch = numpy.zeros((BATCH_SAMPLES, SAMPLE_BYTES // 8), dtype=numpy.int64)
    for _ in range(PASSES + 1):
        generator.shuffle(mine)
        if number == 0:
            forget(place, "shards")
        together.wait(60)
        begin, index = time.monotonic(), 0
        for shard in mine:
            with opened(shard) as read:
                for offset in range(0, SHARD_BYTES, SAMPLE_BYTES):
                    sample = batch[index]
                    if read(sample, offset) != SAMPLE_BYTES or sample[0] != word_at(shard, offset):
                        raise ValueError(f"wrong contents of shard {shard} at {offset}")
                    index = (index + 1) % BATCH_SAMPLES
        times.append((begin, time.monotonic()))
        together.wait(60)
    return times


def loader(place):
    total, context = len(names(place)) * SHARD_BYTES, multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, context, begin_process, (barrier,)) as pool:
        of_processes = list(pool.map(load, [place] * PROCESSES, range(PROCESSES)))
    found = []
    for times in zip(*of_processes):
        found.append(total / (max(end for _, end in times) - min(begin for begin, _ in times)))
    return {"loader": found[1:]}


def random_reads(place):
    fs, path = fsspec.core.url_to_fs(place)
    generator, shards = random.Random(SEED), names(place)
    reads = [(generator.choice(shards), generator.randrange(0, SHARD_BYTES - READ_BYTES, 8)) for _ in range(READS)]
    batches = []
    for first in range(0, READS, BATCH_READS):
        some = reads[first:first + BATCH_READS]
        paths, offsets = [f"{path}/shards/{shard}" for shard, _ in some], [offset for _, offset in some]
        batches.append((paths, offsets, [start + READ_BYTES for start in offsets]))
    for (shard, offset), found in zip(reads, fs.cat_ranges(*batches[0])):
        if len(found) != READ_BYTES or int.from_bytes(found[:8], "little") != word_at(shard, offset):
            sys.exit(f"wrong contents of shard {shard} at {offset}")

    def work():
        for batch in batches:
            fs.cat_ranges(*batch, on_error="raise")

    return {"random": rates(place, "shards", work, READS)}


WORKS = {"parquet": parquet, "loader": loader, "random": random_reads}


def main():
    verb, *words = sys.argv[1:]
    if verb == "make":
        make(*words)
    elif verb == "put":
        fs, path = fsspec.core.url_to_fs(words[1])
        fs.put(words[0], path, recursive=True)
    elif verb == "remove":
        fs, path = fsspec.core.url_to_fs(*words)
        fs.rm(path, recursive=True)
    else:
        print(json.dumps(WORKS[verb](*words)), flush=True)
        # Arrow may still close files of Python while the interpreter ends, and abort it (apache/arrow issue 34314).
        os._exit(0)


if __name__ == "__main__":
    main()
