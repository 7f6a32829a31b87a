"Valid input, noise, threads, files, runs and intervals: what everything else stands on."
