"Networks: the diffusion transformer of MDLM, those of the transformers library, their checkpoints."
