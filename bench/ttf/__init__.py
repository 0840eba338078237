"""Speed and memory of TTF on torch beside torch and its peers."""
