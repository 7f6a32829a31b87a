"""Types: the package passes mypy, and those who use it see concrete ones."""
import re
from pathlib import Path
import pytest
from mypy import api

root = Path(__file__).resolve().parent.parent
strict = '# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls, disallow-untyped-decorators, disallow-any-generics, check-untyped-defs, warn-return-any, strict-equality\n'

snippets = dict(
use='''
import navira
model = navira.load()
res = navira.sample(model, 'navira-piecewise', budget=64, n=2, seed=0, prompt='The old house', trace=True)
reveal_type(model)            # navira.denoiser.MaskedLM
reveal_type(model.mask_id)    # int
reveal_type(res)              # navira.sampling.Samples
reveal_type(res.texts)        # list[str]
reveal_type(res.tokens)       # Tensor
reveal_type(res.n_steps)      # int
reveal_type(list(res))        # list[str]
reveal_type(navira.fill('The ___ house', n=2, tokens=1).texts) # list[str]
assert res.trace is not None
reveal_type(res.trace.remasked) # Tensor
reveal_type(navira.policies())  # dict[str, def (*Any, **Any) -> navira.prism.Policy]
reveal_type(navira.policy('navira', tau=navira.schedules.quadratic())) # navira.prism.Policy
reveal_type(navira.schedules.piecewise(p1=.4)(.5))                     # float
reveal_type(navira.entropy(res.tokens).mean())                         # Tensor
reveal_type(navira.perplexity(res.texts).value)                        # float
''',
own='''
from dataclasses import dataclass, replace
from torch import Tensor
import navira
from navira.decoupling import navira_det, refill_first, refresh
from navira.diffusion import Pass, drawer
from navira.prism import Denoiser, Dial, Policy, Score, State, binomial, dial, during, look, marked, predictor, remask, to_go, topk, uniform, wants
from navira.schedules import piecewise
from navira.selection import gumbel_topk, navira as drawn

@navira.register('second-thoughts', scores='quality head, and how far it fell')
def second_thoughts(weight: float = 1., eta: float = .01, on: float = .5, p: float = .9) -> Policy:
    @marked(needs_quality=True)
    def fallen(st: State, fresh: Pass) -> Tensor:
        g = fresh.quality()
        return -g + weight * (st.score - g).clamp(min=0).nan_to_num(0.)
    return replace(navira_det(p=p), remask=(fallen, topk(during(binomial(eta), on))))

@dataclass(frozen=True)
class above:
    "A select."
    level: Dial
    def wants(self, st: State, eligible: Tensor) -> Tensor: return eligible.any(1)
    def __call__(self, st: State, score: Tensor, eligible: Tensor) -> Tensor: return eligible & (score > dial(self.level, st)[:, None])

@predictor(passes=1, coupled=False)
def recall(policy: Policy, st: State, model: Denoiser) -> tuple[State, Pass]:
    cleaned = remask(policy, st, Pass())
    return look(model, cleaned, wants(policy.reveal[1], cleaned, cleaned.masked))

def late(st: State) -> float: return max(0., st.u - .5)

mine = Policy(reveal=(refill_first, topk(to_go)), remask=(uniform, above(.9)), predict=recall, draw=drawer(temperature=.7, top_k=40))
reveal_type(second_thoughts)              # def (weight: float =, eta: float =, on: float =, p: float =) -> navira.prism.Policy
reveal_type(mine.predict.passes)          # int
reveal_type(replace(mine, predict=refresh)) # navira.prism.Policy
reveal_type(navira.sample(navira.load(), mine, budget=64).texts) # list[str]
scored: Score = uniform
by_schedule, by_state, by_number = drawn(tau=piecewise()), drawn(tau=late), replace(mine, remask=(scored, gumbel_topk(4, .2)))
reveal_type(by_schedule.matched)          # bool
''',
toy='''
import navira
from navira.diffusion import orchard
reveal_type(orchard())                                                     # navira.diffusion.Words
reveal_type(navira.sample(orchard(), 'backbone', budget=3, n=4).n_forward) # Tensor
''',
sweep='''
from pathlib import Path
from navira.experiments import Entry, Sweep, cells, evaluate, load, run
grid = Sweep(entries=(Entry('prism'), Entry('navira', hyper=dict(tau=.1))), budgets=(16, 32), n=8, reference='smollm2')
store = run(grid, Path('runs')/'mine', progress=lambda cell, done, total: print(cell.label, done, total))
reveal_type(store.folder)                       # Path
reveal_type([c.policy for c in cells(grid)])    # list[str]
reveal_type(evaluate(store, ['entropy']).keys)  # list[str]
table = load(store)
''',
)

wrong = '''
import navira
from torch import Tensor
from navira.diffusion import Pass
from navira.prism import Policy, State, reuse, to_go, topk, uniform
model = navira.load()
navira.smaple(model)                                        # attr-defined
navira.sample(model, 3)                                     # arg-type
navira.sample(model, budget='64')                           # arg-type
navira.sample(model).text                                   # attr-defined
text: str = navira.sample(model).texts                      # assignment
navira.sample(model).trace.remasked                         # union-attr
navira.load(3)                                              # arg-type
navira.schedules.piecewise(tau_low=.1)                      # call-arg
def count(st: State, p: Pass) -> int: return 3
Policy(reveal=(count, topk(to_go)), predict=reuse)          # arg-type
Policy(reveal=(uniform, topk(to_go)), predict=uniform)      # arg-type
Policy(reveal=uniform, predict=reuse)                       # arg-type
topk('three')                                               # arg-type
@navira.register('mine')                                    # type-var
def mine(p: float = .9) -> str: return 'prism'
'''

@pytest.fixture(scope='module')
def found(tmp_path_factory):
    "{file: [(line, kind, text)]}: one run over the package and all snippets"
    folder = tmp_path_factory.mktemp('user')
    for name, code in dict(snippets, wrong=wrong).items(): (folder/f'{name}.py').write_text(strict + code.lstrip())
    out, err, _ = api.run(['--config-file', str(root/'pyproject.toml'), '--cache-dir', str(root/'.mypy_cache'), '--no-error-summary', '--show-error-codes', '--no-pretty', str(root/'navira'), *map(str, sorted(folder.glob('*.py')))])
    assert not err, err
    seen = {}
    for m in re.finditer(r'^(.+?):(\d+): (error|note): (.*)$', out, re.M): seen.setdefault(Path(m[1]), []).append((int(m[2]), m[3], m[4]))
    return {'package': {p.name: v for p, v in seen.items() if p.parent.name != folder.name}, **{p.stem: v for p, v in seen.items() if p.parent.name == folder.name}}

def comments(code):
    "{line: what the comment at its end says}, lines as in the file"
    return {i: m[1] for i, line in enumerate((strict + code.lstrip()).splitlines(), 1) if i > 1 and (m := re.search(r'# (.+)$', line))}

def test_the_package_passes(found): assert not {f: e for f, v in found['package'].items() if (e := [x for x in v if x[1] == 'error'])}

@pytest.mark.parametrize('name', snippets)
def test_a_user_sees_concrete_types(found, name):
    got = {i: re.search('"(.*)"', text)[1] for i, kind, text in found.get(name, []) if kind == 'note' and 'Revealed type' in text}
    assert not [x for x in found.get(name, []) if x[1] == 'error']
    short = lambda t: re.sub(r'\b(builtins|torch\._tensor|torch|pathlib)\.(?=[A-Za-z])', '', t)
    assert {i: short(t) for i, t in got.items()} == comments(snippets[name])

def test_a_wrong_use_is_an_error(found):
    got = {i: re.search(r'\[([\w-]+)\]$', text)[1] for i, kind, text in found['wrong'] if kind == 'error'}
    assert got == comments(wrong)
