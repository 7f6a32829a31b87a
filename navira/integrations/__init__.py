"Networks: the diffusion transformer of MDLM with a quality head, the critic, and the opening of checkpoints of others."
