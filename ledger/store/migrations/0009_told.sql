-- Restores and erasures, too, are the owner's to do, so only who may do them may tell of them: a worker, which adds events, can
-- put no such line into a trail. Replaces the function of migration 0004.
create or replace function events_of_the_owner() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if (new.kind = 'config_applied' and not has_table_privilege(current_user, 'public.config_versions', 'insert'))
     or (new.kind = 'clock_moved' and not has_table_privilege(current_user, 'public.clock', 'update'))
     or (new.kind = 'restored' and not has_column_privilege(current_user, 'public.ledger_identity', 'home', 'update'))
     or (new.kind = 'erased' and not has_column_privilege(current_user, 'public.operations', 'erased_at', 'update')) then
    raise exception '% is for the owner to tell', new.kind using errcode = 'EL002';
  end if;
  return new;
end $$;
