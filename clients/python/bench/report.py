# SPDX-License-Identifier: Apache-2.0
"""The report of what was measured, for people and for programs."""

import json
import statistics

# The aims. They are printed beside the figures and decide nothing: the figures depend on the machine.
LEAST_RATIO_LARGE = 0.85
MOST_COST_MICROSECONDS = 5.0


class Spread:
    """Measurements in three numbers."""

    def __init__(self, values):
        self.median, self.least, self.most = statistics.median(values), min(values), max(values)

    def text(self, digits):
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"


def as_json(report):
    return json.dumps(report, indent=2)


def ratio(rates):
    """Of runs that are neighbours in time: other load on the machine affects both."""
    return statistics.median(python / c for python, c in zip(rates["python"], rates["c"]))


def as_table(report):
    large, small, cost = report["large"], report["small"], report["cost"]
    row = "{:34} {:26} {:26} {:>8}  {}".format

    def rates(what, case, scale, digits, aim=""):
        c, python = (Spread([rate / scale for rate in case["rate"][program]]).text(digits) for program in ("c", "python"))
        return row(what, c, python, f"{case['python_to_c']:.2f}", aim)

    def costs(what, *names, aim=""):
        c, python = (f"{sum(cost[program].get(name, 0) for name in names):.3f}" for program in ("c", "python"))
        return row(what, c, python, "", aim)

    lines = [
        f"median (least-most) of {report['runs']} runs of {report['run_seconds']} s each, C and Python in turns; reads at random",
        f"offsets of a file of {report['file_bytes'] >> 20} MiB through one ring of one thread, into the same memory;",
        f"data on {report['data']}, {report['cpus']} processors, Python {report['python']}",
        "",
        row("", "C", "Python", "Python/C", "aim"),
        rates("1 MiB at depth 32, GB/s", large, 1e9 / large["size"], 2, f"at least {LEAST_RATIO_LARGE} of C"),
        rates("4 KiB at depth 64, 1000/s", small, 1000, 1),
        "",
        "microseconds for one of 64 requests of 4 KiB:",
        costs("  prepare", "prepare"),
        costs("  reap", "reap"),
        costs("  prepare + reap", "prepare", "reap", aim=f"below {MOST_COST_MICROSECONDS:.0f} in Python"),
        costs("  slicing the iovec, beside that", "slice"),
        "",
        "Python/C is the median of the rounds' ratios. prepare: all prepare calls of a batch, with what the loop",
        "around them takes; reap: the one wait call that finds the whole batch complete (nothing is waited for),",
        "and reading each result; submit is in neither. Slices are made once for the rates, and anew for each",
        "batch where the cost is measured. After every run a part of the memory was compared with the file,",
        "read past the rings.",
    ]
    return "\n".join(line.rstrip() for line in lines)
