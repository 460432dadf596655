"""Programs of our own: plain files in any directory, and the bare socket pump."""


def data(session, directory, processes, size, request, direct=False, one_file=False):
    """{operation: row} of bench-files; `size` is of each process."""
    more = ["--direct"] * direct + ["--one-file"] * one_file
    rows = session.json("bench-files", "data", "--directory", directory, "-p", processes, "--size", size, "--request", request,
                        *more)
    return {row["operation"]: row for row in rows}


def meta(session, directory, processes, files, shared=False, settle_ms=0):
    more = ["--shared"] if shared else []
    rows = session.json("bench-files", "meta", "--directory", directory, "-p", processes, "--files", files, "--settle-ms",
                        settle_ms, *more)
    return {row["operation"]: row for row in rows}


def pump(session, socket, streams, size, client="each"):
    """{(operation, way and turns): bytes per second}; `size` is of all streams, `client` its threads."""
    rows = session.json("bench-pump", "--directory", session.plain, "--socket", socket, "--streams", streams, "--size", size,
                        "--client", client)
    def name(row):
        return row["way"] + (f", turns of {row['buffer'] >> 10} KiB x {row['ahead']}" if row["ahead"] else "")
    return {(row["operation"], name(row)): row["per_second"] for row in rows}
