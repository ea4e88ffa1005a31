-- A role that reads what people decide on, and changes nothing. Nobody tells of a configuration that they could not apply.

do $$ begin
  -- asked for first, as in 0001: where a database administrator made the role, the owner needs no right to make one
  if not exists (select from pg_roles where rolname = 'effects_reader') then
    create role effects_reader nologin;
  end if;
exception when duplicate_object or unique_violation then null;
end $$;

-- Table by table: a later table is not readable before its migration says so. Personal fields are among it: an approver must read
-- what is signed, and whoever reviews must read the evidence. Left out is what no person decides on: `targets` are locks,
-- `inbox_events` only wake workflows, `notices` wait to be posted, `audit_places` is where a listing goes on.
grant select on operations, attempts, sightings, sheets, statements, holds, events, edges, config_versions, config_current,
  ledger_identity, clock, schema_migrations, audits, audit_findings to effects_reader;

-- The ledger's own stream tells who changed the configuration, and when somebody moved a test clock. Both are the owner's to do,
-- so only who may do it may tell of it: a worker, which adds events, cannot put such a line into the trail.
create function events_of_the_owner() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if (new.kind = 'config_applied' and not has_table_privilege(current_user, 'public.config_versions', 'insert'))
     or (new.kind = 'clock_moved' and not has_table_privilege(current_user, 'public.clock', 'update')) then
    raise exception '% is for the owner to tell', new.kind using errcode = 'EL002';
  end if;
  return new;
end $$;
create trigger events_of_the_owner before insert on events for each row execute function events_of_the_owner();
