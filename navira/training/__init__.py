"Pretraining, the quality head and the critic: one loop."
