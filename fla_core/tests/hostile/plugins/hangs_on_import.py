"""Never comes back from its import."""

import time

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__)


time.sleep(3600)
