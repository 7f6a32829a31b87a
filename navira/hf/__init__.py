"Any policy where people already work: `generate` of transformers, and the lm-evaluation-harness."
