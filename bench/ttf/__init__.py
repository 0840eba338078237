"""TTF's parts beside torch's own."""
