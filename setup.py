"""Packaging of navira. Every value lives in settings.ini: edit it there, not here."""
from configparser import ConfigParser
from pathlib import Path
import setuptools

root = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
lib = cfg['lib_path']
licenses = {'apache2': 'Apache-2.0'}
statuses = ['1 - Planning', '2 - Pre-Alpha', '3 - Alpha', '4 - Beta', '5 - Production/Stable',
            '6 - Mature',
            '7 - Inactive']
pythons = ['3', '3 :: Only', '3.11', '3.12']

# `eval_requirements = ...` becomes the extra [eval]: one extra for each such line.
extras = {k.removesuffix('_requirements'): v.split() for k, v in cfg.items()
          if k.endswith('_requirements')}
apart = 'dev', 'lab', 'mauve'       # mauve-text is under the GPL: only for those who ask for it
extras['all'] = sorted({r for name, rs in extras.items() if name not in apart for r in rs})

setuptools.setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    keywords=cfg['keywords'].split(),
    author=cfg['author'],
    author_email=cfg['author_email'],
    license_expression=licenses[cfg['license']],
    license_files=['LICENSE'],
    url=cfg['git_url'],
    classifiers=['Development Status :: ' + statuses[int(cfg['status']) - 1],
                 'Intended Audience :: ' + cfg['audience'],
                 'Natural Language :: ' + cfg['language'],
                 'Topic :: Scientific/Engineering :: Artificial Intelligence',
                 *(f'Programming Language :: Python :: {p}' for p in pythons)],
    # a plain path for editable installs: their finder loses to a folder `navira` beside a script
    package_dir={'': '.'},
    packages=setuptools.find_packages(include=[lib, lib + '.*']),
    # the embedded model and the configurations travel in the wheel and the sdist
    package_data={lib: ['py.typed', 'weights/**', 'assets/*', 'configs/*.toml']},
    include_package_data=True,
    install_requires=cfg['requirements'].split(),
    extras_require=extras,
    python_requires='>=' + cfg['min_python'],
    long_description=(root/'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    zip_safe=False,
    entry_points={'console_scripts': cfg['console_scripts'].split(),
                  'nbdev': [f'{lib}={lib}._modidx:d']},
)
