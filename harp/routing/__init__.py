"""Switch hashes, fabrics, ECMP, bonds, planned routes and topology affinity."""
