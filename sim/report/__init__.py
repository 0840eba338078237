"""What the user sees of an answer: table, JSON, CSV, plot and trace."""
