"""Other projects' own loops against ours, on a small random network: equal, or where they part.

    python benchmarks/hosts.py
    python benchmarks/hosts.py --dllm CHECKOUT --sglang FOLDER --plugin CHECKOUT --seeds 4

diffusers runs as it is installed. The others are folders: checkouts of ZHZisZZ/dllm and of
vllm-project/dllm-plugin, and one that holds `sglang/srt/dllm`, of a checkout or of an unpacked
wheel of sglang. From these, the files of samplers and rules run as they are; what those import of
a server (the model runner, its arguments) is replaced by empty classes, and the network is ours.
A case is equal if every token is.
"""
import importlib, importlib.machinery, sys, types, warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Optional

import torch
import typer
from transformers import LlamaConfig, LlamaForCausalLM

from navira.models.transformers import bidirectional

V, MASK, EOS, B = 60, 59, 1, 32
TOKENS = SimpleNamespace(mask_token_id=MASK, eos_token_id=EOS, bos_token_id=2)
found = defaultdict(list)      # (host, what) -> the first position that differs, or None


def network(seed, plain=True):
    "A small random network that never prefers the mask, which these projects would write."
    torch.manual_seed(seed)
    net = bidirectional(LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, initializer_range=.4, pad_token_id=0))).eval().requires_grad_(False)
    def unlikely(module, inputs, out): out.logits[..., MASK] = -30
    if plain: net.register_forward_hook(unlikely)
    return net


def compared(host, what, ours, theirs):
    ours, theirs = (torch.as_tensor(t).flatten() for t in (ours, theirs))
    other = (ours != theirs).nonzero() if ours.shape == theirs.shape else torch.zeros(1, 1)
    found[host, what].append(int(other[0]) if len(other) else None)


def stub(name, **what):
    "A module in which every other name is an empty class."
    module = types.ModuleType(name)
    module.__path__, module.__getattr__ = [], lambda k: type(k, (), {})
    vars(module).update(what)
    sys.modules[name] = module


def package(name, folder):
    "A package whose `__init__` does not run."
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module


# --- diffusers ----------------------------------------------------------------------------------
def diffusers(seeds):
    from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
    from navira.hosts.diffusers import NaviraScheduler
    prompts = torch.arange(2, 32).view(3, 10)
    def written(net, scheduler, ids=prompts[:1], **how):
        pipe = LLaDA2Pipeline(net, scheduler)
        pipe.set_progress_bar_config(disable=True)
        return pipe(input_ids=ids, gen_length=2 * B - 10, output_type='seq', mask_token_id=MASK,
                    eos_early_stop=False, **how).sequences
    for seed in range(seeds):
        net, other = network(seed), network(seed, plain=False)
        for n in (5, 16, 32):
            for threshold, edit in ((.7, .5), (.3, .2), (.95, None)):
                how = dict(threshold=threshold, editing_threshold=edit)
                ours, theirs = NaviraScheduler('block-refinement', how), BlockRefinementScheduler()
                how['num_inference_steps'] = n
                three = written(net, ours, prompts, num_inference_steps=n)
                alone = torch.cat([written(net, theirs, p[None], **how) for p in prompts])
                compared('diffusers', 'block-refinement, three rows, theirs one at a time',
                         three, alone)
                compared('diffusers', 'block-refinement, three rows, theirs in a batch', three,
                         written(net, theirs, prompts, **how))
                compared('diffusers', 'block-refinement, where theirs may write the mask',
                         written(other, ours, num_inference_steps=n),
                         written(other, theirs, **how))


# --- dLLM ---------------------------------------------------------------------------------------
def dllm(root, seeds):
    for name in ('dllm', 'dllm.core'): package(name, root/name.replace('.', '/'))
    from dllm.core.samplers import MDLMSampler, MDLMSamplerConfig
    from navira.hosts.servers import DllmSampler
    short, long = list(range(2, 8)), list(range(2, 14))
    cases = {'blocks of 32, as many steps as tokens': ([long], 64, 32, 64),
             'blocks of 32, half as many': ([long], 64, 32, 32),
             'one block': ([long], 48, 48, 12),
             'prompts of two lengths': ([short, long], 32, 16, 32),
             'steps that do not divide the tokens': ([long], 32, 32, 12)}
    for seed in range(seeds):
        net = network(seed)
        ours, theirs = DllmSampler(net, TOKENS, 'llada-low-confidence'), MDLMSampler(net, TOKENS)
        for what, (prompts, new, size, steps) in cases.items():
            how = MDLMSamplerConfig(max_new_tokens=new, block_size=size, steps=steps)
            compared('dLLM', f'low confidence, {what}', ours.sample(prompts, how),
                     theirs.sample(prompts, how))
        texts = [t + [MASK] * 32 + t[:4] for t in (short, long)]
        how = MDLMSamplerConfig(block_size=64, steps=32)
        compared('dLLM', 'low confidence, infill', ours.infill(texts, how),
                 theirs.infill(texts, how))
        rich = MDLMSamplerConfig(max_new_tokens=32, block_size=32, steps=32, return_dict=True)
        out = DllmSampler(net, TOKENS, 'remdm-conf').sample([short], rich)
        assert type(out).__name__ == 'BaseSamplerOutput' and (out.sequences != MASK).all()


# --- SGLang -------------------------------------------------------------------------------------
class Runner:
    "In place of SGLang's: each block is a text of its own."
    def __init__(self, net): self.net = net
    def forward(self, batch, pp_proxy_tensors=None):
        self.read = batch.input_ids.clone()
        logits = self.net(batch.input_ids.view(-1, B)).logits.flatten(0, 1)
        return SimpleNamespace(logits_output=SimpleNamespace(full_logits=logits),
                               can_run_graph=False)


def emitted(algorithm, net, ids):
    "The text [n, B] of blocks, by SGLang's own loop; in both of its modes."
    batch = SimpleNamespace(batch_size=len(ids), input_ids=ids.flatten().clone(),
                            dllm_prompt_mask=None, rids=[str(i) for i in range(len(ids))],
                            positions=torch.arange(B).repeat(len(ids)))
    runner, states, done = Runner(net), None, False
    while not done:
        _, out, accepted, states, _ = algorithm.run(runner, batch, states)
        done = accepted is None or all(accepted)
    assert torch.equal(runner.read, batch.input_ids), 'emitted before a pass has read it'
    return batch.input_ids


def sglang(root, seeds):
    for name in ('sglang', 'sglang.srt', 'sglang.srt.dllm'):
        package(name, root/name.replace('.', '/'))
    for name in ('arg_groups', 'arg_groups.overrides', 'configs', 'configs.model_config', 'layers',
                 'layers.logits_processor', 'model_executor', 'model_executor.forward_batch_info',
                 'model_executor.model_runner', 'server_args'): stub(f'sglang.srt.{name}')
    stub('sglang.srt.utils', is_npu=lambda: False)
    from sglang.srt.dllm.algorithm import algo_name_to_cls
    from navira.hosts.servers import sglang_algorithm
    def made(cls, fdfo, **how):
        return cls(SimpleNamespace(block_size=B, mask_id=MASK, first_done_first_out_mode=fdfo,
                                   algorithm_config=how))
    ids = torch.full((2, B), MASK)
    # without a prompt all masks of a block would be alike
    ids[0, :10], ids[1, :3] = torch.arange(2, 12), torch.arange(20, 23)
    for seed in range(seeds):
        net = network(seed)
        for fdfo, mode in ((False, 'sync'), (True, 'first done, first out')):
            for level in (.3, .6, .95):
                theirs = made(algo_name_to_cls['LowConfidence'], fdfo, threshold=level)
                ours = made(sglang_algorithm(), fdfo, policy='fast-dllm', budget=64,
                            hyper=dict(threshold=level))
                compared('SGLang', f'LowConfidence as fast-dllm, {mode}', emitted(ours, net, ids),
                         emitted(theirs, net, ids))
                theirs = made(algo_name_to_cls['JointThreshold'], fdfo, threshold=level,
                              edit_threshold=.2)
                ours = made(sglang_algorithm(), fdfo, policy='llada2-edit', budget=64,
                            hyper=dict(threshold=level, editing_threshold=.2))
                compared('SGLang', f'JointThreshold as llada2-edit, {mode}',
                         emitted(ours, net, ids), emitted(theirs, net, ids))
            ours = made(sglang_algorithm(), fdfo, policy='remdm-conf')
            assert (emitted(ours, net, ids) != MASK).all()


# --- vLLM's dllm-plugin -------------------------------------------------------------------------
def plugin(root, seeds):
    sys.path.insert(0, str(root))
    name = 'dllm_plugin' if (root/'dllm_plugin').is_dir() else 'vllm_dllm_plugin'
    theirs = importlib.import_module(f'{name}.remasking')
    from navira.hosts.servers import VllmPolicy
    assert importlib.import_module(f'{name}.config').DRAFT_SIZE == B
    def committed(policy, net, steps, level):
        assert isinstance(policy, theirs.RemaskingPolicy)
        text = list(range(2, 12))
        for _ in range(2):
            draft = (MASK,) * B
            for i in range(99):
                logits = net(torch.tensor([[*text, *draft]])).logits[0, -B:]
                r = theirs.remask_after_block_forward(     # it validates what comes back
                    input_draft=draft, logits=logits, policy=policy, remasking_config=dict(
                        mask_token_id=MASK, denoise_steps=steps, denoise_step_index=i,
                        commit_confidence_threshold=level))
                draft = r.next_input_block
                if r.committed_token_ids: break
            text += r.committed_token_ids
        return text
    for seed in range(seeds):
        net = network(seed)
        for steps in (5, 32):
            for level in (.3, .7):
                ours = VllmPolicy('block-refinement', MASK, steps, threshold=level,
                                  editing_threshold=None)
                compared("vLLM's plugin", 'its default policy as block-refinement',
                         committed(ours, net, steps, level),
                         committed(theirs.Llada2DefaultRemaskingPolicy(), net, steps, level))
        for name in ('remdm-conf', 'p2', 'entropy-remask'):
            assert MASK not in committed(VllmPolicy(name, MASK), net, 32, 0.)


def main(
    dllm_: Annotated[Optional[Path], typer.Option('--dllm')] = None,
    sglang_: Annotated[Optional[Path], typer.Option('--sglang')] = None,
    plugin_: Annotated[Optional[Path], typer.Option('--plugin')] = None,
    seeds: int = 2,
):
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    with torch.no_grad():
        diffusers(seeds)
        for run, root in ((dllm, dllm_), (sglang, sglang_), (plugin, plugin_)):
            if root: run(root.resolve(), seeds)
    print(f'{"host":15}{"":60}{"cases":>6}{"equal":>7}  departs at')
    for (host, what), places in found.items():
        parted = [p for p in places if p is not None]
        at = f'token {min(parted)} at the earliest' if parted else ''
        print(f'{host:15}{what:60}{len(places):>6}{len(places) - len(parted):>7}  {at}')


if __name__ == '__main__': typer.run(main)
