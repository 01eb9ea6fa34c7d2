"""Raises what ``except Exception`` does not catch, as a panic in a Rust extension does."""


class PanicException(BaseException):
    pass


raise PanicException("called `Option::unwrap()` on a `None` value")
