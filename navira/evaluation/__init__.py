"What samples are worth: perplexity, diversity, and a judge."
