"What everything else stands on, and no diffusion in it: valid input, noise, threads, files, intervals, tables, a progress bar."
