"""The measurements of `python -m bench`; their figures are not judged here."""
