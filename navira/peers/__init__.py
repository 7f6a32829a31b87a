"Every published rule, and ours beside them. `import navira.peers` registers them all: no policy is there by accident."
import navira.onepass  # noqa: F401
from navira.peers import adaptive, confident, correctors, critics, gidd, loops, mask_predict, orders, remdm, revisers  # noqa: F401
