"""`bass bench`: the latency and throughput of a target and a draft on this machine."""
