"The policies of the paper."
import math

NAMES = ('backbone mdlm prism prism-stochastic navira-det navira navira-quadratic navira-sigmoid '
         'navira-piecewise').split()
COUPLED = ['prism', 'prism-stochastic']

# Settings of each, and its temperature at a progress as the paper writes it
def quadratic(u): return .1 if u <= .4 else .1 + .8 * ((u - .4) / .6) ** 2

def sigmoid(u): return .1 + .8 / (1 + math.exp(-9 * (u - .6)))

def piecewise(u):
    if u <= .3: return .1
    return .1 + .2 * (u - .3) / .4 if u <= .7 else .3 + .6 * ((u - .7) / .3) ** 1.5

FORMS = {
    'prism': ({}, lambda u: 0.), 'prism-stochastic': (dict(tau=.6), lambda u: .6),
    'navira-det': ({}, lambda u: 0.), 'navira': (dict(tau=.6), lambda u: .6),
    'navira-quadratic': (dict(tau_min=.1, tau_max=.9, h=.4), quadratic),
    'navira-sigmoid': (dict(tau_min=.1, tau_max=.9, k=9., c=.6), sigmoid),
    'navira-piecewise': (dict(tau_min=.1, tau_mid=.3, tau_max=.9, p1=.3, p2=.7), piecewise)}
