#!/usr/bin/env bash
# Ray 2.60.0 (PyPI) and a user who has a token file, which any earlier `ray.init()` leaves at ~/.ray/auth_token.
#
# Expected: the user who started a head with `ray start --head` joins it with `ray.init(address="HOST:PORT")`.
# Seen: the head turns tokens on when it finds the file; a program that joins by an address does not, and is refused.
# The exception is a ConnectionError that names only the address; the reason (InvalidAuthToken) is in a line on stderr.
# What helps: RAY_AUTH_MODE=token for whoever joins, or RAY_AUTH_MODE=disabled for the head.
set -euo pipefail
folder=$(mktemp -d)
# `ray stop` would end other clusters of this machine too.
trap 'kill %1 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
export HOME=$folder RAY_USAGE_STATS_ENABLED=0
mkdir "$folder/.ray"
python3 -c 'import secrets; print(secrets.token_hex(32), end="")' >"$folder/.ray/auth_token"
chmod 600 "$folder/.ray/auth_token"
"$folder/venv/bin/ray" start --head --port 6391 --num-cpus 1 --include-dashboard=false --disable-usage-stats --temp-dir "$folder/r" --block >"$folder/head.log" 2>&1 &
for _ in $(seq 60); do
    grep -q "Ray runtime started" "$folder/head.log" && break
    sleep 1
done
join() {
    "$folder/venv/bin/python" - 2>"$folder/stderr" <<'PYTHON'
import ray

try:
    ray.init(address="127.0.0.1:6391", log_to_driver=False)
    print("joined")
except Exception as error:
    print(type(error).__name__)
PYTHON
}
plain=$(join)
reason=$(grep -o -m1 InvalidAuthToken "$folder/stderr" || true)
with_mode=$(RAY_AUTH_MODE=token join)
echo "as is: $plain, stderr has: $reason"
echo "with RAY_AUTH_MODE=token: $with_mode"
[ "$plain" = ConnectionError ] && [ "$with_mode" = joined ]
# Output on 2026-11-29, Python 3.11.7:
#   as is: ConnectionError, stderr has: InvalidAuthToken
#   with RAY_AUTH_MODE=token: joined
