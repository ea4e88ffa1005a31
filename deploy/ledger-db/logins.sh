#!/bin/sh
# Runs once, as the superuser, when the volume of the ledger's Postgres is made: the database, its owner, and a login for each role.
# Their passwords are taken out of the DSNs that their holders use. The owner needs no right to make roles: they stand before
# it migrates. Nobody else may connect.
set -eu
secrets=${SECRETS:-/run/secrets}

# password FILE: what stands between the user's colon and the @
password() {
  dsn=$(cat "$secrets/$1")
  found=${dsn#*://*:}
  found=${found%%@*}
  case $found in
    '' | *[!A-Za-z0-9_-]*) echo "$1 needs a password of letters, digits, _ and -" >&2; exit 1 ;;
  esac
  printf '%s' "$found"
}

OWNER=$(password owner_dsn) WORKER=$(password worker_dsn) INBOX=$(password inbox_dsn) READER=$(password reader_dsn)
export OWNER WORKER INBOX READER
# by the environment: what stands in an argument is shown in every list of processes
psql -v ON_ERROR_STOP=1 --no-psqlrc --quiet -U "${POSTGRES_USER:-postgres}" -d postgres <<'SQL'
\getenv owner OWNER
\getenv worker WORKER
\getenv inbox INBOX
\getenv reader READER
create role effects_worker nologin;
create role effects_inbox nologin;
create role effects_reader nologin;
create role effects_owner login password :'owner';
create role effects_worker_login login password :'worker' in role effects_worker;
create role effects_inbox_login login password :'inbox' in role effects_inbox;
create role effects_reader_login login password :'reader' in role effects_reader;
-- a forgotten session of somebody who reads must not hold back the cleaning of the tables
alter role effects_reader_login set idle_in_transaction_session_timeout = '60s';
alter role effects_reader_login set default_transaction_read_only = on;
create database ledger owner effects_owner;
revoke all on database ledger from public;
grant connect on database ledger to effects_worker, effects_inbox, effects_reader;
SQL
