"""`python -m tamis.cluster`: starts and watches what a run asks for, by lines of JSON on its standard streams.

Commands, one a line:

    {"command": "up", "role": "server", "count": 2, ...}     what `Request` holds; a gang has `"is_gang": true`. What
                                                             is left of the role's last one is ended first
    {"command": "restart", "role": "server", "index": 0}     ends a server, begins a new incarnation of it
    {"command": "down", "role": "server", "generation": 1}   ends all of a role, where that is what was asked for then
    {"command": "look"}                                      finds the machines of the cluster (Ray)

Events, each with the role, its index and the generation that it was asked for with where it is about one:

    connected  commands are carried out from now on
    ready   incarnation, url, nodes, ranks
    died    incarnation, rank (of a gang), node, pid, exit, log, log_tail; is_last: it is not started again
    again   pause, number, most: a server that died is started again in so many seconds
    down    it has ended, and nothing of it is left
    log     message: what a person should know
    machines  machines: name, cores, memory (bytes that are free) and gpus (id, name, memory, used) of each
    error   message, hint: it cannot be started, or is lost; is_last: it is not started again; without a role
            the launcher ends

Its standard error is its log. The end of its input ends all that it started.
"""

import argparse
import json
import os
import select
import signal
import sys
import threading

from .group import Group, Restarts, in_a_line
from .request import Abandoned, LaunchError, Request

# Seconds that all together may take to end.
LAST_SECONDS = 30.0


class Roles:
    """The gangs and servers of a run, by role."""

    def __init__(self, launcher, emit):
        self._launcher, self._emit = launcher, emit
        self._groups = {}

    def carry_out(self, message):
        """A command."""
        command, role = message.pop("command"), message.pop("role", None)
        match command:
            case "look":
                # Others are not to wait for machines that take their time.
                threading.Thread(target=self._look, daemon=True).start()
            case "up":
                # What a new one takes the place of may be on its way out.
                self._end(role)
                self._up(role, message.pop("count", 1), message)
            case "restart":
                for group in self._groups.get(role, []):
                    if group.is_gang:
                        raise LaunchError(f"{role}: a gang is not restarted", "ask for another one (`up`)")
                    if message.get("index", group.index) == group.index:
                        group.restart()
            case "down":
                # One that took its place meanwhile stays.
                meant = message.get("generation")
                if all(meant in (None, group.generation) for group in self._groups.get(role, [])):
                    self._end(role)
            case _:
                raise LaunchError(f"`{command}` is no command", "take the launcher from the same build as `tamis`")

    def _look(self):
        try:
            self._emit("machines", machines=self._launcher.look())
        except Exception as error:
            # Whatever it is shows again when something is started.
            print(f"the machines cannot be looked at: {in_a_line(error)}", file=sys.stderr)
            self._emit("machines", machines=[])

    def _up(self, role, count, settings):
        restarts = Restarts(settings.get("restarts", 0))
        requests = [Request(role=role, index=index, **settings) for index in range(count)]
        for request in requests:
            request.log = request.log.replace("{number}", str(request.index + 1))
        self._groups[role] = [Group(request, self._launcher, self._emit, restarts) for request in requests]
        for group in self._groups[role]:
            group.start()

    def _end(self, *roles):
        groups = [group for role in roles for group in self._groups.pop(role, [])]
        for group in groups:
            group.end()
        for group in groups:
            group.join(LAST_SECONDS)

    def close(self):
        """Ends all."""
        self._end(*self._groups)


class _Asked(BaseException):
    """A signal asked the launcher to end."""


def _ask(*_):
    raise _Asked


def _is_wanted():
    """Whether somebody holds the other end of the input."""
    looking = select.poll()
    looking.register(sys.stdin.fileno(), 0)
    return not looking.poll(0)


def _make_launcher(arguments, say):
    if arguments.launcher == "local":
        from .local import LocalLauncher

        return LocalLauncher()
    from .on_ray import RayLauncher

    return RayLauncher(arguments.address, arguments.wait, _is_wanted, say)


def main():
    """Carries out what comes in, until that ends."""
    parser = argparse.ArgumentParser(prog="python -m tamis.cluster", description="Starts what a run asks for.")
    parser.add_argument("--launcher", required=True, choices=("local", "ray"))
    parser.add_argument("--address", default="auto", help="of the Ray cluster; auto: RAY_ADDRESS, or the one here")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for which a Ray cluster may be away")
    arguments = parser.parse_args()
    # Ctrl-C is the run's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ask)
    # What else is printed is no event.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    emitting = threading.Lock()

    def emit(event, **values):
        with emitting:
            try:
                events.write(json.dumps({"event": event, **values}) + "\n")
            except BrokenPipeError:
                # Nobody listens: the run is gone, and so is its end of the input.
                pass

    try:
        launcher = _make_launcher(arguments, lambda message: emit("log", message=message))
    except LaunchError as error:
        emit("error", message=str(error), hint=error.hint)
        sys.exit(1)
    except (_Asked, Abandoned):
        return
    emit("connected")
    roles = Roles(launcher, emit)
    try:
        for line in sys.stdin:
            roles.carry_out(json.loads(line))
    except LaunchError as error:
        emit("error", message=str(error), hint=error.hint)
        sys.exit(1)
    except _Asked:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        roles.close()
        launcher.close()


if __name__ == "__main__":
    main()
