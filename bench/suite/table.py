"""Markdown tables and how figures are written in them."""


def table(columns, rows):
    """Columns that begin with `>` are flushed right."""
    lines = ["| " + " | ".join(name.lstrip(">") for name in columns) + " |"]
    lines.append("|" + "|".join("--:" if name.startswith(">") else "---" for name in columns) + "|")
    lines += ["| " + " | ".join("n/a" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def gigabytes(value):
    return None if value is None else f"{value / 1e9:.2f}"


def size_text(count):
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def thousands(value):
    return None if value is None else f"{value / 1e3:.1f}"


def spread(ends, text):
    return None if ends is None else f"{text(ends[0])}-{text(ends[1])}"


def ratio(value):
    return None if value is None else f"{value:.2f}"


# Verdicts, the worse the lower. CLOSE: the median misses the goal, and a round reached it.
NO, CLOSE, YES = range(3)
WORDS = {NO: "**no**", CLOSE: "**no**, within the spread", YES: "yes"}


class Goals:
    """Counts what was reached; a goal that could not be judged is neither."""

    def __init__(self):
        self.verdicts = []

    def judge(self, verdict):
        """`verdict`: one of the above, or None when a figure is missing."""
        if verdict is None:
            return None
        self.verdicts.append(verdict)
        return WORDS[verdict]

    def line(self):
        close = self.verdicts.count(CLOSE)
        more = f"; {close} missed by less than the spread of the rounds" if close else ""
        return f"Goals met: {self.verdicts.count(YES)} of {len(self.verdicts)}{more}.\n"


def at_least(value, bound):
    if value is None:
        return None
    return YES if value >= bound else CLOSE if value.high >= bound else NO


def at_most(value, bound):
    if value is None:
        return None
    return YES if value <= bound else CLOSE if value.low <= bound else NO


def below(value, bound):
    return None if value is None else YES if value < bound else NO


def both(*verdicts):
    """No as soon as one is no; unknown when one is and none is no."""
    if NO in verdicts:
        return NO
    return None if None in verdicts else min(verdicts)


def either(*verdicts):
    if YES in verdicts:
        return YES
    return None if None in verdicts else max(verdicts)
