"""Never answers for a device."""

import time

from hostile_base import hookimpl, hooks

fla_backend, fla_implementations = hooks(__name__)


@hookimpl
def fla_probe(device):
    time.sleep(3600)
