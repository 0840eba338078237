"""Outputs of an answer: table, JSON, CSV, plot and trace."""
