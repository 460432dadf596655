"""Samples of several rounds, and the figures made of them."""

import statistics
import time


class CellFailed(Exception):
    """A cell could not be measured; the text is for the reader of the table."""


class Ratio(float):
    """A median over rounds; `low` and `high` are the ends of them."""

    def __new__(cls, ratios):
        ratio = super().__new__(cls, statistics.median(ratios))
        ratio.low, ratio.high = min(ratios), max(ratios)
        return ratio


class Samples:
    """Figures by key; a key is a tuple of texts and numbers. What is measured several times in a round counts as one:
    the median."""

    def __init__(self):
        self._of = {}
        self.failures = {}

    def add(self, round_number, key, value):
        self._of.setdefault(key, {}).setdefault(round_number, []).append(value)

    def _rounds(self, key):
        return {number: statistics.median(values) for number, values in self._of.get(key, {}).items()}

    def fail(self, label, reason):
        self.failures.setdefault(label, reason)

    def values(self, key):
        return list(self._rounds(key).values())

    def keys(self, beginning):
        return [key for key in self._of if key[:len(beginning)] == beginning]

    def median(self, key):
        values = self.values(key)
        return statistics.median(values) if values else None

    def spread(self, key):
        values = self.values(key)
        return (min(values), max(values)) if values else None

    def best(self, keys):
        """The key with the highest median, or None."""
        known = [key for key in keys if self.values(key)]
        return max(known, key=self.median) if known else None

    def ratio(self, key, other):
        """Median over rounds of the ratio within a round."""
        mine, theirs = self._rounds(key), self._rounds(other)
        ratios = [mine[n] / theirs[n] for n in mine if theirs.get(n)]
        return Ratio(ratios) if ratios else None

    def reasons(self):
        """Lines for below the table, one per reason."""
        labels = {}
        for label, reason in sorted(self.failures.items()):
            labels.setdefault(reason, []).append(label)
        lines = []
        for reason, where in labels.items():
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            lines.append(f"- n/a, {where[0]}{more}: {reason}\n")
        return ("\n" if lines else "") + "".join(lines)


# A cell that failed after so long is not tried again in later rounds.
SLOW_FAILURE_SECONDS = 30


def measure(session, groups, samples, repeats=1):
    """Runs all groups, in each round, until the part's time is over.

    A group is (label, [(cell label, function)]); a function returns {key: figure}. Every other round goes backwards through
    the cells of a group, so that none always comes first. Cells that are very much alike are measured several times in
    each round, and each time counts as a round of its own: what is compared is then as near as it can be in time.
    """
    hopeless = set()
    session.keep_memory()
    try:
        for number in range(session.options.rounds * repeats):
            for label, cells in groups:
                if not session.is_over():
                    session.say(f"round {number + 1}: {label}")
                    measure_group(session, number, label, cells, samples, hopeless)
                elif number == 0:
                    samples.fail(label, "the time was over before its turn")
    except SystemExit as interrupt:
        # What was measured until then is told.
        session.interrupted_by(interrupt)


def measure_group(session, number, label, cells, samples, hopeless):
    for cell, function in cells if number % 2 == 0 else reversed(cells):
        if (label, cell) in hopeless:
            continue
        session.wait_until_quiet()
        with Clock() as clock:
            try:
                for key, value in function().items():
                    samples.add(number, key, value)
                continue
            except CellFailed as reason:
                samples.fail(f"{label}, {cell}", str(reason))
        if clock.seconds > SLOW_FAILURE_SECONDS:
            hopeless.add((label, cell))


class Clock:
    """How long something took."""

    def __enter__(self):
        self.seconds = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.seconds
