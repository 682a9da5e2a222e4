"""Tools of `environment: {kind: tools, functions: [examples/tools.py:add]}`: a function's annotations and docstring are what the
model reads."""


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b
