// Two policies sample side by side, in the reader's browser, from files of this site: navira's
// tokens for one text (tests/test_site.py). The sampler, the network and tokenizer, the page.

// --- Noise (nbs/base/noise.ipynb): a function of seed, sample, step, purpose and position ---

// Philox4x32-10: four words from a counter of four and a key of two.
function philox(a, b, c, d, k, l) {
  const high = (x, m) => Number(BigInt(x >>> 0) * BigInt(m) >> 32n);     // of the product
  for (let round = 0; round < 10; round++) {
    const p = high(a, 0xD2511F53), q = high(c, 0xCD9E8D57);
    [a, b, c, d] = [q ^ b ^ k, Math.imul(c, 0xCD9E8D57), p ^ d ^ l, Math.imul(a, 0xD2511F53)];
    k = k + 0x9E3779B9 | 0;
    l = l + 0xBB67AE85 | 0;
  }
  return [a, b];
}

// L uniforms in (0, 1), of 52 bits. `word` is the hash of what they are for.
export function uniforms(seed, sample, step, word, L) {
  return Float64Array.from({length: L}, (_, p) => {
    const [a, b] = philox(p, step, word, sample, seed | 0, seed / 2 ** 32 | 0);
    return ((a >>> 6) * 2 ** 26 + (b >>> 6) + .5) / 2 ** 52;
  });
}

// --- The draw of a token (nbs/01_masked_diffusion.ipynb) ---

// A number for each token id, all from the bits of one uniform, by SplitMix64.
function exponential(u, id) {
  const k = BigInt(Math.floor(u * 2 ** 52));
  let z = BigInt.asUintN(64, (k << 12n) + BigInt(id + 1) * 0x9E3779B97F4A7C15n);
  z = BigInt.asUintN(64, (z ^ z >> 30n) * 0xBF58476D1CE4E5B9n);
  z = BigInt.asUintN(64, (z ^ z >> 27n) * 0x94D049BB133111EBn);
  return -Math.log((Number((z ^ z >> 31n) >> 12n) + .5) / 2 ** 52);
}

// A token of the nucleus: each of its tokens races, with its probability over its exponential.
export function draw(logits, u, topP = .9) {
  const sorted = Float32Array.from(logits).sort().reverse();
  const weight = v => Math.exp(v - sorted[0]), total = sorted.reduce((a, v) => a + weight(v), 0);
  let n = 0, mass = weight(sorted[0]) / total, best = -1, token = -1;
  while (mass <= topP * (1 + 1e-7) && n < sorted.length) mass += weight(sorted[++n]) / total;
  const last = sorted[Math.max(n, 1) - 1];
  let ties = Math.max(n, 1) - sorted.indexOf(last);       // of tokens as probable as the last
  logits.forEach((v, id) => {
    if (v < last || v === last && ties-- <= 0) return;
    const race = weight(v) / exponential(u, id);
    if (race > best) [best, token] = [race, id];
  });
  return token;
}

// --- Rules (nbs/02_policies.ipynb to 06_schedules.ipynb, nbs/ours/one_pass.ipynb) ---

// The positions `among`, highest score first. Neighbours within `near` are tied: u orders them.
function ranked(score, among, u, near) {
  const at = among.filter(p => !Number.isNaN(score[p])).sort((p, q) => score[q] - score[p]);
  const size = Math.max(...at.map(p => Math.abs(score[p]))), level = [];
  at.forEach((p, i) => {
    const q = at[i - 1], larger = Math.max(Math.abs(score[p]), Math.abs(score[q]));
    level[p] = i && level[q] + (score[q] - score[p] > near * (larger + .1 * size));
  });
  return at.sort((p, q) => level[p] - level[q] || u[p] - u[q]);
}

// `cost`: passes that a step is charged. `guarded`: PRISM's guard. `stored`: by stored qualities.
export const POLICIES = {
  'backbone': {name: 'backbone', cost: 1, never: true},
  'prism': {name: 'PRISM', cost: 1, guarded: true},
  'navira-det': {name: 'NAVIRA-det', cost: 2},
  'navira': {name: 'NAVIRA', cost: 2, warm: true},
  'navira-onepass': {name: 'NAVIRA, one pass', cost: 1, warm: true, stored: true},
};

// Temperatures over the progress u of a run.
export const SCHEDULES = {
  constant: (u, tau) => tau,
  quadratic: u => .05 + (.5 - .05) * Math.max(0, (u - .5) / .5) ** 2,
  sigmoid: u => .05 + (.5 - .05) * (1 + Math.tanh(12 * (u - .75) / 2)) / 2,
  piecewise: u => u <= .5 ? .05 : u <= .75 ? .05 + (.2 - .05) * (u - .5) / .25
    : .2 + (.5 - .2) * ((u - .75) / .25) ** 1.5,
};

// A run of one text. `how`: policy, schedule, tau, eta, on, passes, seed, sample.
export class Run {
  constructor(net, x, how) {
    Object.assign(this, {net, how, x: Int32Array.from(x), i: 0, ran: 0});
    this.rule = POLICIES[how.policy];
    this.T = Math.floor(how.passes / this.rule.cost);
    this.at = [...this.x.keys()];
    this.fixed = this.at.map(p => this.x[p] !== net.mask);
    this.free = this.fixed.filter(f => !f).length;
    this.stored = new Float32Array(this.x.length).fill(NaN);   // what one pass remasks by
    this.seen = this.stored.slice();                           // the last quality of each token
    this.frames = [{x: this.x, out: [], now: [], seen: this.seen, ran: 0}];
  }

  uniform(purpose) {
    const {how, net} = this;
    return uniforms(how.seed, how.sample ?? 0, this.i, net.purposes[purpose], this.x.length);
  }
  due(i) { return Math.ceil(this.free * (i + 1) / this.T); }       // committed after step i
  corrects(i) { return !this.rule.never && this.how.on * this.T <= i && i < this.T; }
  async pass(x) {
    const out = await this.net.pass(x);
    this.ran++;
    this.seen = this.seen.map((q, p) => x[p] === this.net.mask ? q : out.quality[p]);
    return out;
  }

  // How many tokens the step remasks: binomial, by eta.
  count(committed) {
    if (!this.corrects(this.i)) return 0;
    const n = committed.length, N = this.free, alpha = n / N, u = this.uniform('count');
    const most = (1 - Math.min(1, alpha + 1 / this.T)) / Math.max(alpha, 1e-12);
    const k = committed.filter(p => u[p] < Math.min(this.how.eta, most, 1)).length;
    return !this.rule.guarded ? k : k < n && n < N - k ? Math.min(k, N - this.due(this.i)) : 0;
  }

  // The k of lowest quality, or at a temperature k drawn without replacement.
  worst(quality, committed, k) {
    const {schedule = 'constant', tau = 0} = this.how, u = this.T > 1 ? this.i / (this.T - 1) : 0;
    const t = this.rule.warm ? SCHEDULES[schedule](u, tau) : 0, noise = this.uniform('gumbel');
    const score = Float64Array.from(quality, (q, p) =>
      t > 0 ? -q / t - Math.log(-Math.log(noise[p])) : -q);
    return ranked(score, committed, this.uniform('ties'), 1e-5).slice(0, k);
  }

  // One step: Algorithm 1 of the paper, or 2 where a step has two passes.
  async step() {
    const {net, rule, at, x} = this, isMask = p => this.x[p] === net.mask;
    const committed = at.filter(p => !this.fixed[p] && !isMask(p)), k = this.count(committed);
    const first = k > 0 && !rule.stored ? await this.pass(x) : null;
    const out = k > 0 ? this.worst(first?.quality ?? this.stored, committed, k) : [];
    const clean = x.map((v, p) => out.includes(p) ? net.mask : v);
    const coupled = rule.cost === 1 && !rule.stored;     // fills only what its pass saw masked
    const open = at.filter(p => (coupled ? x : clean)[p] === net.mask);
    const need = Math.max(0, this.due(this.i) - committed.length + out.length);
    const now = ranked(this.uniform('order'), open, this.uniform('ties'), 1e-9).slice(0, need);
    const next = clean.slice();
    if (now.length) {
      const second = coupled && first ? first : await this.pass(clean), u = this.uniform('token');
      if (rule.stored && this.corrects(this.i + 1))
        this.stored = this.stored.map((q, p) => clean[p] === net.mask ? q : second.quality[p]);
      for (const p of now) next[p] = draw(second.logits(p), u[p]);
    }
    for (const p of now) this.stored[p] = this.seen[p] = NaN;
    Object.assign(this, {x: next, i: this.i + 1});
    this.frames.push({x: next, before: x, out, now, seen: this.seen.slice(), ran: this.ran});
  }
}

// --- Networks, loaded when asked for; and the tokenizer of text ---

const here = name => new URL(name, import.meta.url).href;
const nets = {};       // promises of networks, by task; and of what runs them

// What tools/live.py says of a task: sizes, puzzles, words.
export const about = async task => (await fetch(here(`${task}.json`))).json();

async function bytes(name, progress) {
  const answer = await fetch(here(name)), reader = answer.body.getReader(), parts = [];
  if (!answer.ok) throw new Error(`${name}: the site answered ${answer.status}`);
  for (let p; !(p = await reader.read()).done; progress(p.value.length)) parts.push(p.value);
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function open(task, progress) {
  nets.runtime ??= bytes('ort-wasm-simd-threaded.wasm', progress);
  const ort = await import(here('ort.wasm.bundle.min.mjs'));
  const [wasmBinary, weights, net] = await Promise.all(
    [nets.runtime, bytes(`${task}.onnx`, progress), about(task)]);
  Object.assign(ort.env.wasm, {wasmBinary, numThreads: 1});   // more need headers of a server
  const session = await ort.InferenceSession.create(weights, {executionProviders: ['wasm']});
  async function pass(x) {
    const start = performance.now(), ids = BigInt64Array.from(x, BigInt);
    const {logits, quality} = await session.run({x: new ort.Tensor('int64', ids, [1, x.length])});
    net.seconds.push((performance.now() - start) / 1000);
    const row = p => logits.data.subarray(p * net.vocabulary, (p + 1) * net.vocabulary);
    for (let p = 0; p < x.length; p++) row(p)[net.mask] = -Infinity;
    return {logits: row, quality: quality.data};
  }
  return Object.assign(net, {pass, seconds: []});
}

// The network of a task, loaded once; `progress` is told of bytes. A failure is not kept.
export const network = (task, progress = () => {}) =>
  nets[task] ??= open(task, progress).catch(e => {
    nets[task] = nets.runtime = null;
    throw new Error(`The network did not load (${e.message}). A recorded run stands below.`);
  });

// Byte-level BPE: the neighbours whose merge comes first in the list merge, until none do. After a
// merge only the ranks beside it are looked up again: every key typed comes here.
export function encode(text, net) {
  const {pattern, first, merges} = net, key = (a, b) => a * 2 ** 20 + b;
  net.ranks ??= new Map(merges.map(([a, b], i) => [key(a, b), i]));
  return [...text.matchAll(new RegExp(pattern, 'gu'))].flatMap(([word]) => {
    const ids = Array.from(new TextEncoder().encode(word), byte => first[byte]);
    const rank = j => net.ranks.get(key(ids[j], ids[j + 1])) ?? Infinity;
    const ranks = ids.map((_, j) => rank(j));
    for (;;) {
      let j = 0;
      for (let i = 1; i < ids.length; i++) if (ranks[i] < ranks[j]) j = i;
      if (ranks[j] === Infinity) return ids;
      ids.splice(j, 2, merges[ranks[j]][2]);
      ranks.splice(j, 1);
      for (const i of [j - 1, j]) if (i >= 0) ranks[i] = rank(i);
    }
  });
}

// --- The page (form.html): a form, two panels, one clock ---

const $ = id => document.getElementById(`live-${id}`);
const nine = (tag, inside) => `<${tag}>${inside}</${tag}>`.repeat(9);
const units = p => [Math.floor(p / 9), p % 9, 3 * Math.floor(p / 27) + Math.floor(p % 9 / 3)];
const peers = (p, q) => p !== q && units(p).some((u, j) => u === units(q)[j]);
const wrong = (x, p) => x[p] < 9 && x.some((v, q) => v === x[p] && peers(p, q));
const percent = q => Math.round(100 / (1 + Math.exp(-q)));

let task = 'sudoku', net, abouts, form, inputs, panels, session = null, tick = 0, playing = null;
let said = '', chain = Promise.resolve();       // said: what screen readers read out
const grid = () => task === 'sudoku';
const word = v => v === net.mask ? '' : grid() ? `${v + 1}` : net.words[v];
const place = p => grid() ? `row ${units(p)[0] + 1}, column ${units(p)[1] + 1}` : `token ${p + 1}`;

// The ids that both runs start from.
function given() {
  const x = new Int32Array(net.length).fill(net.mask);
  if (grid()) inputs.forEach((e, p) => { if (e.value) x[p] = e.value - 1; });
  // a token has at most 14 characters: what lies beyond 32 for each is too long anyway
  else x.set(encode(form.prompt.value.slice(0, 32 * net.length), net).slice(0, net.length));
  return x;
}

// Bad input is refused at its field: what was given, and what was expected.
function check(x) {
  const full = !x.includes(net.mask);
  form.prompt.setCustomValidity(!grid() && full ? `Expected fewer than ${net.length} tokens.` : '');
  inputs.forEach((e, p) => e.setCustomValidity(!grid() ? ''
    : wrong(x, p) ? 'This digit is already in the row, column or box.'
      : full ? 'Expected an empty cell.' : ''));
  if (form.reportValidity()) return;
  const e = form.querySelector('input:invalid'), name = e.ariaLabel ?? e.labels[0].innerText.trim();
  throw new Error(`${name}: ${e.value.slice(0, 60) || 'nothing'}. ${e.validationMessage}`);
}

// A session is two runs. The network loads behind a bar.
async function begin(mine) {
  const x = given(), bar = $('progress'), value = name => form[name].value;
  check(x);
  const hows = ['L', 'R'].map(side => ({policy: value(`policy${side}`), on: net.on,
    schedule: value(`schedule${side}`), tau: +value(`tau${side}`), eta: +value('eta'),
    passes: +value('passes'), seed: +value('seed')}));
  form.querySelector('.bar').scrollIntoView();
  [$('error').textContent, $('loading').hidden] = ['', Boolean(nets[task])];
  if (!nets[task]) [bar.value, $('status').textContent] = [0, 'Loading the network.'];
  mine.net = await network(task, n => { bar.value += n / net.bytes; })
    .finally(() => { $('loading').hidden = true; });
  mine.runs = hows.map(how => new Run(mine.net, x, how));
  mine.N = Math.max(...mine.runs.map(run => run.T));
}

// To the next tick. At tick k of N, a run of T steps has made floor(T k / N) of them.
async function advance(mine) {
  if (session === mine && !mine.runs) await begin(mine);
  const k = Math.min(tick + 1, mine.N);
  for (const run of mine.runs ?? [])
    while (session === mine && run.i < Math.floor(run.T * k / mine.N)) await run.step();
  mine.made = Math.max(mine.made ?? 0, k);
  if (session === mine && tick === k - 1) show(k);       // unless the slider was moved
}

const frame = run => run.frames[Math.floor(run.T * tick / session.N)];
function show(k) {
  tick = Math.min(k, session?.made ?? 0);       // no step that has not been made
  const {runs, N = 1} = session ?? {}, x = runs || given();
  panels.forEach((paint, j) => paint(runs?.[j], runs ? frame(runs[j]) : {x, out: [], now: []}));
  said = (runs ?? []).map(run => `${run.rule.name}, ${told(run)}`).join(' ');
  Object.assign($('slider'), {disabled: !runs, max: N, value: tick, ariaValueText: said});
  const times = session?.net?.seconds.toSorted((a, b) => a - b) ?? [];
  if (times.length) $(`speed-${task}`).textContent = `${times[times.length >> 1].toFixed(3)} s`;
}

// What a run did in its last step, in words.
function told(run) {
  const f = frame(run), bad = run.at.filter(p => wrong(f.x, p)).length;
  const low = run.at.filter(p => !run.fixed[p] && f.x[p] !== net.mask && f.seen[p] < 0).length;
  const out = f.out.slice(0, 4).map(p => `${word(f.before[p]).trim()} at ${place(p)}`).join('; ');
  const end = tick < session.N ? '' : !grid() ? ' Finished.'
    : bad ? ` Not solved: ${bad} cells contradict others.` : ' Solved.';
  return `step ${run.frames.indexOf(f)} of ${run.T} (passes run: ${f.ran}), ` +
    `${f.now.length} written, ${f.out.length} remasked${out && ` (${out})`}, ` +
    `${low} with a quality below 50 %.${end}`;
}

// Makes the cells of a panel; what it returns paints a state of a run, or the start.
function panel(section, j) {
  const [title, text, facts] = section.children, parts = '<i></i><s aria-hidden="true"></s><b></b>';
  text.innerHTML = grid() ? `<table>${nine('tr', nine('td', parts))}</table>`
    : `<span>${parts}</span>`.repeat(net.length);
  const cells = [...text.querySelectorAll('td, span')];
  return (run, f) => {
    title.textContent = form[`policy${'LR'[j]}`].selectedOptions[0].text;
    facts.textContent = run ? told(run) : '';
    cells.forEach((cell, p) => fill(cell, p, run, f));
  };
}

function fill(cell, p, run, f) {
  const blank = f.x[p] === net.mask, out = f.out.includes(p), q = blank && !out ? NaN : f.seen?.[p];
  const old = out ? word(f.before[p]).replace('\n', '\u21b5') : '';
  const kind = (run ? run.fixed[p] : !blank) ? 'given' : out ? blank ? 'remasked' : 'rewritten'
    : blank ? 'masked' : f.now.includes(p) ? 'written' : 'kept';
  const [, space, rest] = /^( *)([^]*)$/.exec(word(f.x[p]).replace('\n', '\u21b5\n'));
  cell.className = `tok ${kind}${grid() && wrong(f.x, p) ? ' bad' : ''}`;
  cell.style.setProperty('--q', `${percent(-q) || 0}%`);
  cell.title = place(p) + (q > -99 ? `, quality ${percent(q)} %` : '');
  if (grid()) cell.ariaLabel = `${word(f.x[p])} ${kind}, ${cell.title}`;
  [space, old, rest].forEach((text, j) => { cell.children[j].textContent = text; });
}

// Another task, puzzle or setting: what runs is left where it is.
function leave(message = '') {
  session = null;
  for (const e of [form.prompt, form.tauL, form.tauR]) e.disabled = !e.checkVisibility();
  $('error').textContent = message;
  show(0);
  pause();
}

const pause = () =>
  [playing, $('play').textContent, $('status').textContent] = [null, 'Play', said];

// Steps wait for each other. While it plays, only every fourth part is announced.
function step() {
  const mine = session ??= {};
  chain = chain.then(() => advance(mine)).then(() => {
    if (session === mine && !(playing && tick < mine.N && tick % Math.ceil(mine.N / 4)))
      $('status').textContent = said;
  }).catch(e => { if (session === mine) leave(e.message); });
  return chain;
}

async function play() {
  if (playing) return pause();
  const mine = playing = {};
  $('play').textContent = 'Pause';
  if (tick === session?.N) show(0);
  while (playing === mine) {
    await step();
    if (playing === mine && tick === session.N) return pause();
    await new Promise(done => setTimeout(done, form.pace.value));
  }
}

function choose(wanted) {
  [task, net] = [wanted, abouts[wanted]];
  for (const name of ['passes', 'eta']) form[name].value = net[name];
  panels = [...$('panels').children].map(panel);
  leave();
}

// 81 fields: Tab reaches the first, and arrow keys lead to the others.
function editor(root) {
  root.innerHTML = nine('tr', nine('td', '<input inputmode="numeric" onfocus="this.select()">'));
  inputs = [...root.querySelectorAll('input')];
  inputs.forEach((e, p) => Object.assign(e, {ariaLabel: place(p), tabIndex: p ? -1 : 0}));
  root.onkeydown = event => {
    const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -9, ArrowDown: 9}[event.key];
    if (by) event.preventDefault();
    inputs[inputs.indexOf(event.target) + by]?.focus();
  };
  root.onpaste = event => {
    const pasted = event.clipboardData.getData('text').normalize('NFKC');     // full-width digits too
    const marks = [...pasted.replace(/[\s|+-]/g, '')], n = marks.length;
    if (n < 2) return;
    event.preventDefault();
    const odd = marks.findIndex(mark => !/[0-9._]/.test(mark));
    if (n !== 81) return leave(`Pasted: ${n} marks. Expected 81: digits, and . or 0.`);
    if (odd >= 0) return leave(`Pasted: ${marks[odd]} at ${place(odd)}. Expected a digit, . or 0.`);
    set(marks);
    form.puzzle.selectedIndex = -1;
    leave();
  };
}
const set = marks => inputs.forEach((e, p) => { e.value = marks[p] > 0 ? marks[p] : ''; });
function changed({target: e, data}) {
  if (e.name === 'task') choose(e.value);
  if (e.name === 'puzzle') set(e.value);
  if (inputs.includes(e)) e.value = (data > 0 ? data : e.value).replace(/[^1-9]/g, '').slice(-1);
  if (inputs.includes(e)) form.puzzle.selectedIndex = -1;
  if (e.name !== 'pace') leave();
}

async function main() {
  $('root').innerHTML = await (await fetch(here('form.html'))).text();
  abouts = {sudoku: await about('sudoku'), text: await about('text')};
  form = $('form');
  editor($('puzzle'));
  form.puzzle.append(...abouts.sudoku.puzzles.map(([name, marks]) => new Option(name, marks)));
  set(form.puzzle.value);
  choose(task);
  form.onsubmit = e => { e.preventDefault(); play(); };
  form.oninput = changed;
  $('step').onclick = () => { pause(); step(); };
  $('slider').oninput = e => { e.stopPropagation(); pause(); show(e.target.valueAsNumber); };
}

// without WebAssembly the page keeps what it says, and its recorded run
if ($('root') && typeof WebAssembly === 'object') main();
