"""What README and the front pages show under a shell command, and what of it a run did not print.

    make demo | python tools/shown.py 'make demo'
"""
import json, re, sys
from order import nbs

PAGES = ['index', '08_experiments',
         *(f'start/{page}' for page in ('ten_minutes', 'which_policy', 'when_it_helps', 'live',
                                        'add_your_own', 'glossary', 'policy_template'))]

def shown():
    "(page, command, output) of each shell block that its output follows."
    for page in PAGES:
        cells = json.loads((nbs/f'{page}.ipynb').read_text(encoding='utf-8'))['cells']
        text = '\n\n'.join(''.join(c['source']) for c in cells if c['cell_type'] == 'markdown')
        for commands, output in re.findall(r'~~~sh\n(.*?)~~~\s+~~~text\n(.*?)~~~', text, re.S):
            command = commands.replace('\\\n', ' ').strip().split('\n')[-1]
            yield page, command.split(' #')[0].strip(), output

def lines(text): return [' '.join(line.split()) for line in text.splitlines() if line.strip(' ─')]

NUMBER = re.compile(r'\d+(?:\.\d+)?')

def alike(a, b):
    """Is a line printed as shown? A decimal may differ by one in its last digit, a whole number by
    1 %: perplexities by a judge in bfloat16 do, from processor to processor."""
    def near(x, y):
        slack = 1.01 * 10. ** -len(x.partition('.')[2]) if '.' in x else .01 * float(x)
        return abs(float(x) - float(y)) <= slack
    pairs = zip(NUMBER.findall(a), NUMBER.findall(b))
    return NUMBER.sub('#', a) == NUMBER.sub('#', b) and all(near(*pair) for pair in pairs)

def missing(output, printed):
    "Lines of a page that were not printed in this order; `...` stands for any lines."
    rest = iter(lines(printed))
    return [line for line in lines(output)
            if line != '...' and not any(alike(line, other) for other in rest)]

if __name__ == '__main__':
    printed = sys.stdin.read()
    print(printed)
    gone = [f'{page}: {line}' for page, command, output in shown() if command == sys.argv[1]
            for line in missing(output, printed)]
    sys.exit('\n'.join(['shown, but not printed by this run:', *gone]) if gone else 0)
