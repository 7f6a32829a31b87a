"Every published rule. `import navira.peers` registers them, and ours: no policy is missing by accident."
import navira.ours  # noqa: F401
from navira.peers import adaptive, confident, correctors, critics, editors, gidd, loops, mask_predict  # noqa: F401
from navira.peers import orders, remdm, revisers, shadow  # noqa: F401
