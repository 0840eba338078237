"""The answer as one HTML file that needs nothing else."""
