"The policies of the paper."
NAMES = ('backbone mdlm prism prism-stochastic navira-det navira navira-quadratic navira-sigmoid '
         'navira-piecewise').split()
COUPLED = ['prism', 'prism-stochastic']

# Settings of each, and its temperature at a progress as the paper writes it
def quadratic(u): return .1 if u <= .4 else .1 + .8 * ((u - .4) / .6) ** 2

FORMS = {
    'prism': ({}, lambda u: 0.), 'prism-stochastic': (dict(tau=.6), lambda u: .6),
    'navira-det': ({}, lambda u: 0.), 'navira': (dict(tau=.6), lambda u: .6),
    'navira-quadratic': (dict(tau_min=.1, tau_max=.9, h=.4), quadratic)}
