"Every published rule. `import navira.peers` registers them all, and ours."
import navira.ours  # noqa: F401
from navira.peers import adaptive, best_of, confident, correctors, critics, editors  # noqa: F401
from navira.peers import gidd, loops, mask_predict, orders, remdm  # noqa: F401
from navira.peers import revisers, revocable, shadow  # noqa: F401
