"""`python -m tamis.cluster`: starts and watches processes for a run, by lines of JSON on its standard streams.

Commands, one a line:

    {"command": "up", "role": "server", "count": 2, ...}     the fields of `Request`; a gang has `"is_gang": true`.
                                                             The role's previous processes are ended first
    {"command": "restart", "role": "server", "index": 0}     ends a server and begins a new incarnation of it
    {"command": "down", "role": "server", "generation": 1}   ends all of a role, if this is its generation
    {"command": "look"}                                      lists the machines of the cluster (Ray)

Events. Each has the role, its index and the generation of the request, if it concerns one:

    connected  commands are carried out from now on
    ready   incarnation, url, nodes, ranks
    died    incarnation, rank (of a gang), node, pid, exit, log, log_tail; is_last: it is not restarted
    again   pause, number, most: a server that died is restarted in so many seconds
    down    it has ended, and nothing of it is left
    log     message, for people
    machines  machines: name, cores, memory (free bytes) and gpus (id, name, memory, used) of each
    error   message, hint: it cannot be started, or is lost; is_last: it is not restarted; without a role
            the launcher ends

Standard error is the launcher's log. When its input ends, it ends everything that it started.
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

# Seconds that all processes together may take to end.
LAST_SECONDS = 30.0


class Roles:
    """The gangs and servers of a run, by role."""

    def __init__(self, launcher, emit):
        self._launcher, self._emit = launcher, emit
        self._groups = {}

    def carry_out(self, message):
        """Carries out a command."""
        command, role = message.pop("command"), message.pop("role", None)
        match command:
            case "look":
                # Other requests do not wait for slow machines.
                threading.Thread(target=self._look, daemon=True).start()
            case "up":
                # The processes that a new request replaces may still be ending.
                self._end(role)
                self._up(role, message.pop("count", 1), message)
            case "restart":
                for group in self._groups.get(role, []):
                    if group.is_gang:
                        raise LaunchError(f"{role}: a gang is not restarted", "ask for another one (`up`)")
                    if message.get("index", group.index) == group.index:
                        group.restart()
            case "down":
                # A group that replaced it meanwhile stays.
                meant = message.get("generation")
                if all(meant in (None, group.generation) for group in self._groups.get(role, [])):
                    self._end(role)
            case _:
                raise LaunchError(f"`{command}` is no command", "take the launcher from the same build as `tamis`")

    def _look(self):
        try:
            self._emit("machines", machines=self._launcher.look())
        except Exception as error:
            # The reason appears again when something is started.
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
        """Ends everything."""
        self._end(*self._groups)


class _Asked(BaseException):
    """A signal asked the launcher to end."""


def _ask(*_):
    raise _Asked


def _is_wanted():
    """Whether the other end of the input is open."""
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
    """Carries out commands until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m tamis.cluster", description="Starts what a run asks for.")
    parser.add_argument("--launcher", required=True, choices=("local", "ray"))
    parser.add_argument("--address", default="auto", help="of the Ray cluster; auto: RAY_ADDRESS, or the one here")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for which a Ray cluster may be away")
    arguments = parser.parse_args()
    # The run handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ask)
    # Other output is not an event.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    emitting = threading.Lock()

    def emit(event, **values):
        with emitting:
            try:
                events.write(json.dumps({"event": event, **values}) + "\n")
            except BrokenPipeError:
                # The run is gone, and with it the other end of the input.
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
