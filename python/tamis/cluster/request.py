"""What to start, and why it cannot be started."""

from dataclasses import dataclass, field


class LaunchError(Exception):
    """Something cannot be started: the reason, and the fix."""

    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


class Abandoned(Exception):
    """A wait was cancelled, because its result is not needed any more."""


@dataclass
class Request:
    """One gang, or one of several servers, as the controller requests it."""

    role: str
    # Its index in its role.
    index: int
    # Program and arguments, with placeholders for what the place knows: `{python}`, `{listen}`, `{host}`, `{port}`,
    # `{key_file}`, `{key_config}`.
    argv: list
    # The file that its output is appended to; those of other ranks are beside it.
    log: str
    # The command for people.
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
    # `cpu`: needs no GPU; `cuda`: needs one; `auto`: uses them if there are any.
    device: str = "auto"
    # GPUs that it leaves to others if it takes all.
    reserve: int = 0
    # The role whose GPUs it shares.
    share: str | None = None
    # The secret that it must require, which its node gets as files.
    key: str | None = None
    # The path that is requested when it is up.
    health: str = "/health"
    # Longest time that it may leave this request unanswered once it has answered; null: any.
    silence: float | None = None
    # Its working folder, if that exists there.
    folder: str | None = None
    startup_timeout: float = 300.0
    # How often all of its role together are restarted.
    restarts: int = 0
    # The number of this request in its role. Each event has it, because events may come late.
    generation: int = 0

    @property
    def name(self):
        """Its name in messages."""
        return self.role if self.is_gang else f"{self.role} {self.index + 1}"

    def gpus_per_node(self, counts):
        """GPUs of each node, if enough machines of a cluster have so many: the fewest that all have."""
        if self.per_node is not None:
            return self.per_node
        most = sorted(counts, reverse=True)[: self.nodes]
        return max(1, min(most[-1], (sum(counts) - self.reserve) // self.nodes))
