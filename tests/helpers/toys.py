"""Small things that tests share: small models, and the paper's algorithms written a
second time, slowly: `transcribed` runs them as loops over rows and positions, with full logits
everywhere, and calls none of the library's samplers."""
import math
from fractions import Fraction
import torch
from navira.models.layers import Config
from navira.models.dit import MaskedLM
from navira.models.critic import Critic
from navira.diffusion import Denoiser, Forward
from navira.base.noise import Noise


def truncate(q, P):
    """{token: probability} of MDLM's nucleus: in falling order while the sum with it is within
    P; the first always"""
    if P >= 1: return {v: a for v, a in enumerate(q) if a > 0}
    kept, total = {}, 0.
    for v in sorted(range(len(q)), key=lambda v: -q[v]):
        total += q[v]
        if kept and total > P: break
        kept[v] = q[v]
    return {v: a / sum(kept.values()) for v, a in kept.items()}

def splitmix(z):
    "The finalizer of SplitMix64, on Python's integers"
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31

def race(u, i):
    "The exponential of token i"
    bits = splitmix((int(u * 2**52) * 2**12 + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 12
    return -math.log((bits + .5) / 2**52)

def pick(q, u):
    "The token that wins the race, of {token: probability}"
    return max(q, key=lambda v: q[v] / race(u, v))

def small_lm(seed=0, **kw):
    "A MaskedLM with random numbers in every parameter, those that start at zero included"
    cfg = dict(vocab_size=11, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2,
               dropout=0., quality_blocks=1) | kw
    model, g = MaskedLM(Config(**cfg)), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise, wide = torch.randn(p.shape, generator=g), 'output_layer.linear' in name
            if p.ndim > 1: p.copy_(noise * (1.5 if wide else 1.) / math.sqrt(p.shape[-1]))
            else: p.copy_(('norm' in name) + .3 * noise)
        table = model.backbone.vocab_embed.embedding
        table.copy_(torch.randn(table.shape, generator=g))
    return model.eval().requires_grad_(False)

def llama(n_blocks=2, shift=False):
    "A network of transformers with random numbers, in float64"
    from transformers import LlamaConfig, LlamaForCausalLM
    from navira.models.transformers import TransformersLM
    torch.manual_seed(0)
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=n_blocks, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, max_position_embeddings=12, eos_token_id=3))
    with torch.no_grad():
        for p in net.parameters(): p.copy_(.4 * torch.randn_like(p))
    model = TransformersLM(net.double().eval(), 10, shift)
    model.quality = lambda h: h[..., 0]
    return model

def everywhere(model, x):
    """Full logits [B, L, V] and quality [B, L] of one forward, the output layer run at every
    position"""
    h, c, rope = model.backbone(x)
    logits = model.backbone.output_layer(h, c)
    logits[..., model.mask_id] = -math.inf
    return logits, model.quality(h, c, rope)

def transcribed(model, x, T, seed, coupled, tau=lambda u: 0., eta=.01, on=.5, off=1., P=.9):
    """Algorithms 1 (as in PRISM's public script) and 2, by loops; `x` [B, L]: the prompt and
    masks. Also returns K's."""
    M, (B, L) = model.mask_id, x.shape
    free = [[j for j in range(L) if x[b, j] == M] for b in range(B)]
    noise, taken = Noise(seed, torch.arange(B)), []
    opens, closes = (Fraction(str(share)) * T for share in (on, off))     # as they were typed
    def draw(logits, u): return pick(truncate(logits.double().softmax(-1).tolist(), P), u)
    for i in range(T):
        u = {k: noise.uniform(i, k, L).tolist()
             for k in ('count', 'gumbel', 'order', 'ties', 'token')}
        logits, g = everywhere(model, x)
        y, plan, t = x.clone(), [], tau(i / (T - 1) if T > 1 else 0.)
        for b in range(B):
            C = [j for j in free[b] if x[b, j] != M]
            N, n = len(free[b]), len(C)
            k = math.ceil(N * (i + 1) / T)
            sigma = min(eta, (1 - min(n / N + 1 / T, 1)) / (n / N)) if n else 0.
            R = sum(u['count'][b][j] < sigma for j in C) if opens <= i < closes else 0
            if coupled and not (R > 0 and n > R and n < N - R): R = 0
            s = {j: g[b, j].item() for j in C}
            key = {j: -s[j] if t == 0 else -s[j] / t - math.log(-math.log(u['gumbel'][b][j]))
                   for j in C}
            Q = sorted(C, key=lambda j: (-key[j], u['ties'][b][j]))[:R]
            # what may stay masked; PRISM's script does it by its scores, next line
            if coupled and t > 0: Q = Q[:N - k]
            score = dict.fromkeys(free[b], math.inf)
            score |= {j: 1 / (1 + math.exp(-s[j])) - 1 for j in Q}
            score |= {j: u['order'][b][j] for j in free[b] if j not in C}
            clean = sorted(free[b], key=lambda j: (score[j], u['ties'][b][j]), reverse=True)[:k]
            if not coupled: clean = None
            for j in Q:
                if not (coupled and j in clean): y[b, j] = M
            plan.append((k, clean)); taken.append(int((y[b] != x[b]).sum()))
        if not coupled: logits, _ = everywhere(model, y)
        z = y.clone()
        for b in range(B):
            k, clean = plan[b]
            masks = [j for j in free[b] if y[b, j] == M]
            if coupled: S = [j for j in clean if x[b, j] == M]
            else:
                due = k - (len(free[b]) - len(masks))
                S = sorted(masks, key=lambda j: -u['order'][b][j])[:due]
            for j in S: z[b, j] = draw(logits[b, j], u['token'][b][j])
        x = z
    return x, taken

class Tiny(Denoiser):
    """A random float64 network for texts of up to L tokens, in which every token changes every
    logit and quality; `sharp` makes it surer. Counts what it computes."""
    has_quality = True

    def __init__(self, L, V, seed=0, sharp=1., width=8):
        g = torch.Generator().manual_seed(seed)
        rand = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)
        self.length, self.mask_id, self.vocab_size = L, V, V + 1
        self.emb, self.mix = rand(L, V + 1, width), rand(L, L, width) / math.sqrt(L)
        self.w = rand(width, width) / math.sqrt(width)
        self.out, self.head = 1.5 * sharp * rand(width, V + 1), rand(width)
        self.reset()

    # rows of each pass, positions asked for logits, tokens rated; threads may append to lists
    def reset(self): self.rows, self.asked, self.rated = [], [], []

    def __call__(self, x):
        assert len(x), 'a pass over no rows'
        self.rows.append(len(x))
        return TinyForward(self, x)

    def shadow(self, x, where, together=False): return TinyForward(self, x)

    def embedded(self, x, edit):
        self(x)
        return TinyForward(self, x, edit)

    def embed(self, x): return self.emb[torch.arange(x.shape[1]), x]

    def attending(self, x):
        "Its pass, and what might be an attention: rows add up to 1"
        e = self.embed(x)
        return self(x), (e @ e.mT).softmax(-1)

    def hidden(self, x, edit=None):
        e, n = self.embed(x), x.shape[1]
        if edit: e = edit(e)
        return (torch.einsum('ijd,bjd->bid', self.mix[:n, :n], e) + .5 * e @ self.w).tanh()

    def logits_at(self, x, where, edit=None):
        out = self.hidden(x, edit)[where] @ self.out
        self.asked.append(len(out))
        out[:, self.mask_id] = -torch.inf
        return out

    def quality_of(self, x):
        self.rated.append(x.numel())
        return self.hidden(x) @ self.head

class TinyForward(Forward):
    def __init__(self, net, x, edit=None):
        self.net, self.x, self.seen_masked, self.edit = net, x, x == net.mask_id, edit

    def logits(self, where): return self.net.logits_at(self.x, where, self.edit)

    def left_out(self, where):
        "Of a mask at each position of `where`, with everything else as it is"
        b, i = where if isinstance(where, tuple) else where.nonzero(as_tuple=True)
        x = self.x[b].scatter(1, i[:, None], self.net.mask_id)
        return self.net.logits_at(x, torch.nn.functional.one_hot(i, x.shape[1]).bool())

    def _quality(self): return self.net.quality_of(self.x)

    def rated(self, rows):
        if self._cached is not None: return super().rated(rows)
        return self.net.quality_of(self.x[rows])

def critic_like(model, seed=1, **kw):
    "A critic with random numbers in every parameter"
    c, g = Critic.of(model, **kw), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in c.parameters(): p.add_(.3 * torch.randn(p.shape, generator=g))
    return c.eval().requires_grad_(False)
