"""Parameters from data: fitted to a topology's published rows, or to measurements of a stack."""
