#!/bin/sh
# Makes the secret files that docker-compose.yml reads, each with a new random password. What is there already stays.
# SECRETS_DIR says where (deploy/secrets), LEDGER_ADDRESS where the ledger's Postgres is reached (ledger-db:5432).
#
# The folder is closed to others; the files in it are readable, because compose mounts them as they are and the users inside
# the containers have other numbers than yours.
set -eu
dir=${SECRETS_DIR:-$(dirname "$0")/secrets}
address=${LEDGER_ADDRESS:-ledger-db:5432}

random() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

# keep FILE TEXT: write the file unless it is there
keep() {
  [ -e "$dir/$1" ] && return
  printf '%s\n' "$2" > "$dir/$1"
  chmod 444 "$dir/$1"
  echo "made $dir/$1"
}

mkdir -p "$dir"
chmod 700 "$dir"
for holder in owner worker inbox reader codec; do
  mkdir -p "$dir/$holder"
  chmod 755 "$dir/$holder"
done
keep ledger_db_password "$(random)"
keep temporal_db_password "$(random)"
keep grafana_password "$(random)"
keep owner/effects_owner_dsn "postgresql://effects_owner:$(random)@$address/ledger"
keep worker/effects_ledger_dsn "postgresql://effects_worker_login:$(random)@$address/ledger"
keep inbox/effects_inbox_dsn "postgresql://effects_inbox_login:$(random)@$address/ledger"
keep reader/effects_ledger_dsn "postgresql://effects_reader_login:$(random)@$address/ledger"
# what encrypts in Temporal: whoever runs workflows, reads or decrypts for the Web UI has the same key
keep worker/payload_key "$(head -c 32 /dev/urandom | base64)"
keep reader/payload_key "$(cat "$dir/worker/payload_key")"
keep codec/payload_key "$(cat "$dir/worker/payload_key")"
keep codec/codec_token "$(random)"
echo "Add with \`install -m 444\`: what tenants.toml names, one file each, into $dir/worker; Stripe's signing secret as"
echo "$dir/inbox/stripe_webhook."
