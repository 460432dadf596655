"""Markdown tables and how figures are written in them."""


def table(columns, rows):
    """Columns that begin with `>` are flushed right."""
    lines = ["| " + " | ".join(name.lstrip(">") for name in columns) + " |"]
    lines.append("|" + "|".join("--:" if name.startswith(">") else "---" for name in columns) + "|")
    lines += ["| " + " | ".join("n/a" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def gigabytes(value):
    return None if value is None else f"{value / 1e9:.2f}"


def thousands(value):
    return None if value is None else f"{value / 1e3:.1f}"


def spread(ends, text):
    return None if ends is None else f"{text(ends[0])}-{text(ends[1])}"


def ratio(value):
    return None if value is None else f"{value:.2f}"


class Goals:
    """Counts what was reached; a goal that could not be judged is neither."""

    def __init__(self):
        self.met = self.missed = 0

    def judge(self, verdict, why=""):
        """`verdict`: true, false, or None when a figure is missing."""
        if verdict is None:
            return None
        self.met += bool(verdict)
        self.missed += not verdict
        return ("yes" if verdict else "**no**") + (f" ({why})" if why else "")

    def line(self):
        return f"Goals met: {self.met} of {self.met + self.missed}.\n"


def at_least(value, bound):
    return None if value is None else value >= bound


def both(*verdicts):
    """No as soon as one is no; unknown when one is and none is no."""
    if any(verdict is False for verdict in verdicts):
        return False
    return None if any(verdict is None for verdict in verdicts) else True


def either(*verdicts):
    if any(verdict for verdict in verdicts):
        return True
    return None if any(verdict is None for verdict in verdicts) else False
