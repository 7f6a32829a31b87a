"Every published rule, and ours beside them. `import navira.peers` registers them all: no policy is there by accident."
import navira.apart  # noqa: F401
import navira.onepass  # noqa: F401
from navira.peers import adaptive, confident, correctors, critics, editors, gidd, loops, mask_predict  # noqa: F401
from navira.peers import orders, remdm, revisers, shadow  # noqa: F401
