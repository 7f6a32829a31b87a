"""Write navira/assets/meanings.json, {policy: {parameter: the comment behind it}}, which
`navira info` shows."""
import json
from pathlib import Path
from fastcore.docments import docments
from navira.sampler.draws import TokenSampler
from navira.sampler.registry import policies, sources

def meanings(factory):
    "The comments of all functions whose parameters a factory takes"
    parts = [docments(f, returns=False) for f in (TokenSampler, *sources(factory))]
    return {k: v for part in parts for k, v in part.items() if v}

if __name__ == '__main__':
    known = {name: meanings(factory) for name, factory in sorted(policies().items())}
    path = Path(__file__).parent.parent/'navira'/'assets'/'meanings.json'
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
