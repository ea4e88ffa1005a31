-- Restores: a ledger that was restored from a backup may have forgotten what it sent. It notices by itself that it lives in
-- another database than it did, and nothing is claimed until an audit has run and two operators have said so.
-- Refused here: EL005 a claim on a ledger that was restored.

-- Each life of this ledger between two restores has a number; `home` is where it lives now. Only the owner writes both.
alter table ledger_identity
  add column incarnation int not null default 1 check (incarnation > 0),
  add column home text;

-- Which database this is, as Postgres itself knows it: 'cluster/database/table/timeline'. Another cluster has another
-- identifier; a database or table made anew from a dump has another oid; recovery to a point in time, and the promotion of
-- a standby, begin a new timeline. On a standby, where nothing can be claimed, the timeline is taken for the recorded one.
create function ledger_home() returns text language sql volatile set search_path = public, pg_temp as $$
  select concat_ws('/', system_identifier,
    (select oid from pg_database where datname = current_database()),
    'operations'::regclass::oid,
    case when pg_is_in_recovery() then (select split_part(home, '/', 4) from ledger_identity)
         else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end)
  from pg_control_system()
$$;
update ledger_identity set home = ledger_home();
alter table ledger_identity alter column home set not null;

-- Whether the ledger lives where it did. Else everything is held, whatever the rows of `holds` say.
create function at_home() returns boolean language sql volatile set search_path = public, pg_temp as $$
  select home = ledger_home() from ledger_identity
$$;

-- The hold that `effects restored` leaves behind. It is there from the beginning, so that claims have a row to lock.
insert into holds (scope) values ('restored');

-- Whatever a worker believes, and however old its code is: nothing is claimed on a ledger that may have forgotten a claim.
create function claims_guard() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if not at_home() or exists (select from holds where scope = 'restored' and held) then
    raise exception 'operation % is not claimed: the ledger was restored, and nobody has released it', old.operation_id
      using errcode = 'EL005';
  end if;
  return new;
end $$;
create trigger claims_guard before update of state on operations for each row
  when (new.state = 'in_flight' and old.state <> 'in_flight') execute function claims_guard();

-- In which incarnation an audit began. A restored ledger is released only after a complete one in its own.
alter table audits add column incarnation int not null default 1;
alter table audits alter column incarnation drop default;
create function audits_guard() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if new.incarnation > (select incarnation from ledger_identity) then
    raise exception 'there is no incarnation % yet', new.incarnation using errcode = 'EL002';
  end if;
  new.ended_at := ledger_now();
  return new;
end $$;
create trigger audits_guard before insert on audits for each row execute function audits_guard();
-- what number it has, and when it ended, is not for a worker to say
revoke insert on audits from effects_worker;
grant insert (incarnation, began_at, listed, complete, left_out) on audits to effects_worker;
