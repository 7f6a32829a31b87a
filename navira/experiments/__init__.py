"The grid of runs, its store, and the tables, figures and verdicts made of it."
