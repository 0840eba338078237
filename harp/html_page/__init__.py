"""Pages of one HTML file that load nothing: what `sim.report.html` and commands of harp share."""
