"Our own policies, which register themselves."
from navira.ours import apart, onepass  # noqa: F401
