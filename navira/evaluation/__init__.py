"What samples are worth: perplexity, diversity, trajectories, and a judge."
