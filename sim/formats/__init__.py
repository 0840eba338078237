"""Descriptions of clusters in other programs' formats."""
