#!/bin/sh
# Makes Temporal's two databases and brings them to the schema of this image. Run again it changes nothing, and after an upgrade
# of the image it brings them forward: the server of the new version starts after it.
set -eu
SQL_PASSWORD=$(cat "${SECRETS:-/run/secrets}/temporal_db_password")
export SQL_PASSWORD
for name in temporal visibility; do
  case $name in temporal) db=temporal ;; visibility) db=temporal_visibility ;; esac
  temporal-sql-tool --db "$db" create
  temporal-sql-tool --db "$db" setup-schema -v 0.0
  temporal-sql-tool --db "$db" update-schema -d "/etc/temporal/schema/postgresql/v12/$name/versioned"
done
