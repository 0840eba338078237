"""Records of a run: results, and the spans of a timeline."""
