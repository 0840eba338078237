"""From scenarios to answers: runs, fits, draws, intervals, warnings."""
