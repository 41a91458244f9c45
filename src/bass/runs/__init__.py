"""What is recorded of a run of cells or an evaluation: settings, records, and their files."""
