"""The badge under each notebook's title, and the line that brings navira and its results to Colab.

    python tools/colab.py            # write them into notebooks that lack them

Both come from settings.ini. Until the repository is public, its addresses there are placeholders
and lead nowhere.
"""
import json
from order import nbs, notebooks, settings

COLAB = 'https://colab.research.google.com'
# Only Colab has a /content: "Run all" in Jupyter runs the line too, and it does nothing there
LINE = ('#| hide\n#| eval: false\n'
        '![ -d /content ] && git clone -q {git_url} /navira && make -C /navira colab')

def opening(path, cfg):
    "The two cells below the title of the notebook at `path`."
    at = f"{cfg['user']}/{cfg['repo']}/blob/{cfg['branch']}/nbs/{path.relative_to(nbs).as_posix()}"
    badge = f'[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({COLAB}/github/{at})'
    return [dict(cell_type='markdown', id='colab-badge', metadata={}, source=[badge]),
            dict(cell_type='code', execution_count=None, id='colab-install', metadata={},
                 outputs=[],
                 source=LINE.format(git_url=cfg['git_url']).splitlines(keepends=True))]

if __name__ == '__main__':
    for path in notebooks():
        nb = json.loads(path.read_text(encoding='utf-8'))
        title, *rest = [c for c in nb['cells'] if not c['id'].startswith('colab-')]
        nb['cells'] = [title, *opening(path, settings()), *rest]
        text = json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + '\n', encoding='utf-8')
