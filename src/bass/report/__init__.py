"""`bass report`: a run folder as one HTML page, its plots, and the comparison of two runs."""
