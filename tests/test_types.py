"""Types: the package passes mypy, and those who use it see concrete ones."""
import re
from pathlib import Path
import pytest
from mypy import api

root = Path(__file__).resolve().parent.parent
strict = ('# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls, '
          'disallow-untyped-decorators, disallow-any-generics, check-untyped-defs, '
          'warn-return-any, strict-equality\n')

snippets = dict(
use='''
import navira
model = navira.load()
res = navira.sample(model, 'navira-piecewise', budget=64, n=2, seed=0, prompt='The old', trace=True)
reveal_type(model)      # navira.models.dit.MaskedLM | navira.models.transformers.TransformersLM
reveal_type(model.mask_id)    # int
reveal_type(res)              # navira.sampler.samples.Samples
reveal_type(res.texts)        # list[str]
reveal_type(res.tokens)       # Tensor
reveal_type(res.n_steps)      # int
reveal_type(list(res))        # list[str]
reveal_type(navira.fill('The ___ house', n=2, tokens=1).texts) # list[str]
assert res.trace is not None
reveal_type(res.trace.remasked) # Tensor
reveal_type(navira.policies())  # dict[str, def (*Any, **Any) -> navira.core.Policy]
reveal_type(navira.policy('navira', tau=navira.schedules.quadratic())) # navira.core.Policy
reveal_type(navira.schedules.piecewise(p1=.4)(.5))                     # float
reveal_type(navira.entropy(res.tokens).mean())                         # Tensor
reveal_type(navira.perplexity(res.texts).value)                        # float
''',
own='''
from dataclasses import dataclass, replace
from torch import Tensor
import navira
from navira.core import Denoiser, Flip, Pass, Policy, Rule, Schedule, Score, State, Step, TopK, draw_at, evaluate, n_unmask, needs_quality, nothing, pick, random_choice
from navira.decoupling import navira_det, refill_first
from navira.sampler.draws import TokenSampler
from navira.prism import binomial, Window
from navira.remasking import navira as drawn
from navira.schedules import piecewise

@navira.register('second-thoughts', scores='quality head, and how far it fell')
def second_thoughts(weight: float = 1., eta: float = .01, on: float = .5) -> Policy:
    @needs_quality
    def fallen(st: State, p: Pass, where: Tensor) -> Tensor:
        q = p.quality(where)
        return -q + weight * (st.score - q).clamp(min=0).nan_to_num(0.)
    return replace(navira_det(), remask=TopK(fallen, Window(binomial(eta), on)), draw=TokenSampler(1., .8))

@dataclass(frozen=True)
class above:
    "A rule."
    level: Schedule
    def rows(self, st: State, eligible: Tensor) -> Tensor: return eligible.any(1)
    def __call__(self, st: State, p: Pass, eligible: Tensor) -> Tensor:
        return eligible & (st.conf > evaluate(self.level, st)[:, None])

def surest(st: State, p: Pass, eligible: Tensor) -> Tensor: return eligible & (p.quality(eligible) > 0)

class InPlace(Step):
    def __call__(self, policy: Policy, st: State, model: Denoiser, watch: object) -> State:
        p = Pass(model, st, policy.draw)
        return draw_at(st, p, pick(policy.remask, st, p, st.committed)).next(p.cost)

def late(st: State) -> float: return max(0., st.u - .5)

warm = TokenSampler(temperature=.7, top_k=40)
mine = Policy(unmask=TopK(refill_first, n_unmask), remask=above(.9), decoupled=True, draw=warm)
reveal_type(second_thoughts)              # def (weight: float =, eta: float =, on: float =) -> navira.core.Policy
reveal_type(mine.passes)                  # int
reveal_type(mine.reads_quality)           # bool
reveal_type(replace(mine, decoupled=False, remask=nothing, step=InPlace())) # navira.core.Policy
reveal_type(navira.sample(navira.load(), mine, budget=64).texts) # list[str]
scored: Score = random_choice
by_rule: tuple[Rule, ...] = surest, Flip(.5), TopK(scored, late, late)
by_schedule, by_state, by_number = drawn(tau=piecewise()), drawn(tau=late), replace(mine, remask=TopK(scored, 4, .2))
reveal_type(by_schedule.matched)          # bool
''',  # noqa: E501
toy='''
import navira
from navira.sampler.joint import orchard
reveal_type(orchard())                                          # navira.sampler.joint.Words
reveal_type(navira.sample(orchard(), 'backbone', budget=3, n=4).n_forward) # Tensor
''',
sweep='''
from pathlib import Path
from navira.experiments.results import frame
from navira.experiments.measure import evaluate
from navira.experiments.run import run
from navira.experiments.sweep import Sweep, cells
grid = Sweep((dict(policy='prism'), dict(policy='navira', tau=.1)), budgets=(16, 32), n=8)
store = run(grid, Path('runs')/'mine')
reveal_type(store.folder)                       # Path
reveal_type([c.policy for c in cells(grid)])    # list[str]
reveal_type(evaluate(store, ['entropy']).cells)  # dict[str, dict[Any, Any]]
table = frame(store)
''',
)

wrong = '''
import navira
from torch import Tensor
from navira.core import Pass, Policy, State, TopK, n_unmask, random_order
model = navira.load()
navira.smaple(model)                                        # attr-defined
navira.sample(model, 3)                                     # arg-type
navira.sample(model, budget='64')                           # arg-type
navira.sample(model).text                                   # attr-defined
text: str = navira.sample(model).texts                      # assignment
navira.sample(model).trace.remasked                         # union-attr
navira.load(3)                                              # arg-type
navira.schedules.piecewise(tau_low=.1)                      # call-arg
def count(st: State, p: Pass, where: Tensor) -> int: return 3
def two(st: State, p: Pass) -> Tensor: return st.x
Policy(unmask=TopK(count, n_unmask))                        # arg-type
Policy(unmask=TopK(two, n_unmask))                          # arg-type
Policy(unmask=(random_order, n_unmask))                     # arg-type
Policy(unmask=TopK(random_order, n_unmask), remask=two)     # arg-type
Policy(unmask=TopK(random_order, n_unmask), decoupled='yes') # arg-type
TopK(random_order, 'three')                                 # arg-type
@navira.register('mine')                                    # type-var
def mine(top_p: float = .9) -> str: return 'prism'
'''

@pytest.fixture(scope='module')
def found(tmp_path_factory):
    "{file: [(line, kind, text)]}: one run over the package and all snippets"
    folder = tmp_path_factory.mktemp('user')
    for name, code in dict(snippets,
                           wrong=wrong).items(): (folder/f'{name}.py').write_text(strict
                                                                                  + code.lstrip())
    options = ['--config-file', str(root/'pyproject.toml'), '--cache-dir', str(root/'.mypy_cache'),
               '--no-error-summary', '--show-error-codes', '--no-pretty']
    out, err, _ = api.run([*options, str(root/'navira'), *map(str, sorted(folder.glob('*.py')))])
    assert not err, err
    seen = {}
    for m in re.finditer(r'^(.+?):(\d+): (error|note): (.*)$', out, re.M):
        seen.setdefault(Path(m[1]), []).append((int(m[2]), m[3], m[4]))
    # mypy's cache says what it knows of an equal file by the path that it first had
    package = {p: v for p, v in seen.items() if (root/p).is_relative_to(root/'navira')}
    ours = {p.stem: v for p, v in seen.items() if p not in package}
    return {'package': {str(p): v for p, v in package.items()}, **ours}

def comments(code):
    "{line: what the comment at its end says}, lines as in the file"
    lines = (strict + code.lstrip()).splitlines()
    return {i: m[1] for i, line in enumerate(lines, 1) if i > 1
            and (m := re.search(r'# (.+)$', line))}

def test_the_package_passes(found):
    assert not {f: e for f, v in found['package'].items()
                if (e := [x for x in v if x[1] == 'error'])}

@pytest.mark.parametrize('name', snippets)
def test_a_user_sees_concrete_types(found, name):
    seen = found.get(name, [])
    got = {i: re.search('"(.*)"', text)[1] for i, kind, text in seen if kind == 'note'
           and 'Revealed type' in text}
    assert not [x for x in seen if x[1] == 'error']
    long = r'\b(builtins|torch\._tensor|torch|pathlib)\.(?=[A-Za-z])'
    assert {i: re.sub(long, '', t) for i, t in got.items()} == comments(snippets[name])

def test_a_wrong_use_is_an_error(found):
    got = {i: re.search(r'\[([\w-]+)\]$', text)[1] for i, kind, text in found['wrong']
           if kind == 'error'}
    assert got == comments(wrong)
