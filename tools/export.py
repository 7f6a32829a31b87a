"""Write navira/ from the notebooks. A page exports one module, which its `#| default_exp` names;
or several, and then each exported cell names its own, as `#| export base.files`.

    python tools/export.py
"""
import re
from nbdev.config import get_config
from nbdev.doclinks import _build_modidx, add_init
from nbdev.export import ExportModuleProc
from nbdev.maker import ModuleMaker
from nbdev.process import NBProcessor
import order

class Modules(ExportModuleProc):
    "The exported cells by module, each after the heading with its docstring."
    def __call__(self, cell):
        super().__call__(cell)
        if cell.cell_type == 'markdown' and re.match(r'#+ .+\n+> ', cell.source): self.about = cell

    def _exporti_(self, cell, exp_to=None):
        if exp_to and exp_to not in self.modules:
            self.about.source = re.sub('^#+', '#', self.about.source)     # nbdev looks for a title
            self.modules[exp_to].append(self.about)
        super()._exporti_(cell, exp_to)

if __name__ == '__main__':
    to = get_config().lib_path
    for nb in order.notebooks():
        exp = Modules()
        NBProcessor(nb, [exp]).process()
        for key, cells in exp.modules.items():
            if all(c.cell_type == 'markdown' for c in cells): continue
            name = exp.default_exp if key == '#' else key
            ModuleMaker(dest=to, name=name, nb_path=nb).make(cells, exp.in_all[key])
    add_init(to)
    _build_modidx()
