"""The parts of a run. Each has SHARE, its share of the time, and run(session), which returns its table with heading."""
