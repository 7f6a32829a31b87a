__version__ = "0.1.0"

from typing import TYPE_CHECKING

# The public surface, imported when first used: `navira --version` need not load torch.
_home = {'load': 'denoiser', 'save': 'denoiser', 'Policy': 'prism', 'sample': 'sampling', 'fill': 'sampling', 'policies': 'sampling', 'policy': 'sampling',
         'register': 'sampling', 'perplexity': 'metrics', 'entropy': 'metrics'}

if TYPE_CHECKING:     # the same for those who only read the types: a name that is not there is an error
    from . import schedules as schedules
    from .denoiser import load as load, save as save
    from .metrics import entropy as entropy, perplexity as perplexity
    from .prism import Policy as Policy
    from .sampling import fill as fill, policies as policies, policy as policy, register as register, sample as sample
else:
    __all__ = [*_home, 'schedules']

    def __getattr__(name):
        from importlib import import_module
        if name in _home:
            if _home[name] == 'sampling': import_module('navira.onepass')     # it and the baselines register themselves
            return import_module('navira.sampling').documented(getattr(import_module(f'navira.{_home[name]}'), name))     # `help` sees its parameters
        if name == 'schedules': return import_module('navira.schedules')
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def __dir__(): return [*globals(), *__all__]
