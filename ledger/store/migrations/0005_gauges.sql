-- What a worker tells about the whole ledger every few seconds costs what is open, not what was ever done.

-- When the operation came to its state; by a trigger, so that no worker can make anything look younger. Null for what had
-- ended before this migration: nobody asks how long an end has lasted.
alter table operations add column state_since timestamptz;
update operations as o
   set state_since = coalesce((select at from events where stream = o.operation_id and kind = 'moved' order by number desc limit 1),
                              o.proposed_at)
 where ended_at is null;

create function operations_since() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  new.state_since := ledger_now();
  return new;
end $$;
-- named after operations_guard, so that it runs after it: what is refused needs no time
create trigger operations_since_born before insert on operations for each row execute function operations_since();
create trigger operations_since_moved before update of state on operations
  for each row when (old.state is distinct from new.state) execute function operations_since();

-- ended, and followed while the receipt is pending: such a step can be overdue too
create index operations_followed on operations (next_step_at) where next_step = 'follow';
-- evidence against an end: few, and never forgotten
create index operations_contradicted on operations (proposed_at) where contradicted;
create index events_contradictions on events (at) where kind = 'contradiction';
-- whether a provider told of an operation's effect by webhook
create index inbox_about on inbox_events (marker, received_at) where marker is not null;
