"Every published rule. `import navira.peers` registers them all, and ours."
import navira.ours  # noqa: F401
from navira.peers import adaptive, attention, best_of, confident, correctors  # noqa: F401
from navira.peers import critics, editors, loops, orders, remdm  # noqa: F401
from navira.peers import revisers, shadow, uniform, yielding  # noqa: F401
