#!/bin/sh
# The server takes its password from the environment only; here it comes from a file, after the start, so that no
# description of the container holds it.
set -eu
POSTGRES_PWD=$(cat /run/secrets/temporal_db_password)
export POSTGRES_PWD
exec /etc/temporal/entrypoint.sh
