"""Records of a run of cells or of an evaluation: settings, records, and their files."""
