"""What a run leaves behind: results, and the spans of a timeline."""
