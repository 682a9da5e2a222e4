"""What is to be started, and why it cannot be."""

from dataclasses import dataclass, field


class LaunchError(Exception):
    """Something cannot be started: what, and the fix."""

    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


class Abandoned(Exception):
    """A wait was given up: what is waited for is not wanted any more."""


@dataclass
class Request:
    """One gang, or one of several servers, as the controller asks for it."""

    role: str
    # Its place among those of its role.
    index: int
    # Program and arguments. What is known on the spot stands in braces in it: `{python}`, `{listen}`, `{host}`, `{port}`,
    # `{key_file}`, `{key_config}`.
    argv: list
    # The file that its output is appended to; those of further ranks stand beside it.
    log: str
    # The command as a person reads it.
    shown: str | None = None
    python: str = "python3"
    environment: dict = field(default_factory=dict)
    # Whether its program is in this package.
    package: bool = False
    # Whether it is a gang: processes that know their rank, as torchrun starts them.
    is_gang: bool = False
    nodes: int = 1
    # Ranks of each node, or GPUs of a server; null: as many as there are GPUs.
    per_node: int | None = None
    # `cpu`: it needs no GPU; `cuda`: it does; `auto`: where there are some.
    device: str = "auto"
    # GPUs that are left to others where it takes all.
    reserve: int = 0
    # The role on whose GPUs it is started.
    share: str | None = None
    # The secret that it is to ask for, which its node is given as files.
    key: str | None = None
    # What is asked for when it is up.
    health: str = "/health"
    # Longest time for which one that has answered may leave that unanswered; null: any.
    silence: float | None = None
    # Its working folder, where it is there.
    folder: str | None = None
    startup_timeout: float = 300.0
    # How often those of its role are started again where they end, all of them together.
    restarts: int = 0
    # Which request of its role it is: all that is said of it names that, for news of the last one may come late.
    generation: int = 0

    @property
    def name(self):
        """As messages have it."""
        return self.role if self.is_gang else f"{self.role} {self.index + 1}"

    def gpus_per_node(self, counts):
        """GPUs of each node, where the machines of a cluster have so many; the fewest that all have."""
        if self.per_node is not None:
            return self.per_node
        most = sorted(counts, reverse=True)[: self.nodes]
        return max(1, min(most[-1], (sum(counts) - self.reserve) // self.nodes))
