"""Changes the facts it was shown, for those who are asked after it."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, verifier=f"{__name__}:verifier")


def verifier(view):
    view.dtypes.clear()
    view.axes.clear()
    return False, "not today"
