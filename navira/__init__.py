__version__ = "0.1.0"

import warnings
from typing import TYPE_CHECKING

# tqdm, as other libraries import it, asks a notebook for ipywidgets, which bars do without
warnings.filterwarnings('ignore', 'IProgress not found')

# The public surface, imported when first used: `navira --version` need not load torch.
_home = {
    'load': 'models.load', 'save': 'models.load', 'Denoiser': 'diffusion', 'Policy': 'core',
    'guided': 'sampler.guidance', 'constrained': 'sampler.guidance',
    'renoised': 'sampler.renoise',
    'sample': 'sampling', 'fill': 'sampler.filling', 'chat': 'sampler.filling',
    'wrap': 'models.transformers', 'generate_with': 'hf.generate',
    'policies': 'sampler.registry', 'policy': 'sampler.registry',
    'register': 'sampler.registry', 'perplexity': 'evaluation.perplexity',
    'entropy': 'evaluation.diversity'}

if TYPE_CHECKING:     # the same for readers of types alone: a name that is missing is an error
    from . import schedules as schedules
    from .models.load import load as load, save as save
    from .models.transformers import wrap as wrap
    from .evaluation.diversity import entropy as entropy
    from .evaluation.perplexity import perplexity as perplexity
    from .core import Policy as Policy
    from .diffusion import Denoiser as Denoiser
    from .sampler.filling import chat as chat
    from .sampler.filling import fill as fill
    from .hf.generate import generate_with as generate_with
    from .sampler.guidance import constrained as constrained, guided as guided
    from .sampler.renoise import renoised as renoised
    from .sampler.registry import policies as policies, policy as policy, register as register
    from .sampling import sample as sample
else:
    __all__ = [*_home, 'schedules']

    def __getattr__(name):
        from importlib import import_module
        if name == 'schedules': return import_module('navira.schedules')
        if name not in _home: raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        return getattr(import_module(f'navira.{_home[name]}'), name)

    def __dir__(): return [*globals(), *__all__]
