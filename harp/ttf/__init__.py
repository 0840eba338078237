"""TTF: what training of search, ads and recommendation models adds to torch."""
