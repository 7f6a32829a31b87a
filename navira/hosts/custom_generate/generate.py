"`model.generate(custom_generate=navira.hosts.FOLDER)` of transformers runs a copy of this file."
from navira.hf.generate import custom_generate as generate  # noqa: F401
