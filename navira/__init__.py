__version__ = "0.1.0"

# The public surface, imported when first used: `navira --version` need not load torch.
_home = {'load': 'denoiser', 'save': 'denoiser', 'Policy': 'prism', 'sample': 'sampling', 'policies': 'sampling', 'policy': 'sampling',
         'register': 'sampling', 'perplexity': 'metrics', 'entropy': 'metrics'}
__all__ = [*_home, 'schedules']

def __getattr__(name):
    from importlib import import_module
    if name in _home:
        if _home[name] == 'sampling': import_module('navira.onepass')     # it and the baselines register themselves
        return getattr(import_module(f'navira.{_home[name]}'), name)
    if name == 'schedules': return import_module('navira.schedules')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

def __dir__(): return [*globals(), *__all__]
