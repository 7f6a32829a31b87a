"""PRISM upside down: it remasks the tokens that the quality head trusts most."""
from dataclasses import replace

from navira.core import needs_quality
from navira.prism import low_quality, prism
from navira.registry import register

@needs_quality
def high_quality(st, p, where): return -low_quality(st, p, where)

@register('backwards', scores='quality head', selects='the K highest', source='planted')
def backwards(
    eta: float = 0.15, # remask probability of a token
    top_p: float = 0.9, # nucleus
):
    "What the head trusts is masked again, and what it doubts stays."
    rule = prism(eta=eta, on=0., top_p=top_p)
    return replace(rule, remask=replace(rule.remask, score=high_quality))
