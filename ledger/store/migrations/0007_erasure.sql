-- Erasure: of an operation that has ended, the personal fields can be emptied, once, by the owner, and by nobody else. Digests,
-- moves, amounts and codes stay. No role has the privilege; these triggers say what the owner may do, and nothing more.

alter table operations add column erased_at timestamptz; -- when its personal fields were emptied
alter table operations drop constraint fingerprint_of_canonical;
alter table operations
  -- what was approved is what these bytes say; a claim recomputes it, and no row can ever disagree
  add constraint fingerprint_of_canonical check (
    erased_at is not null
    or fingerprint = sha256(convert_to(E'effect-ledger/operation/v1\n', 'UTF8') || canonical)),
  -- whoever erases, erases all of it
  add constraint erased_is_empty check (
    erased_at is null
    or (requested_by, token, arguments, evidence, distinct_from, canonical)
       = ('', '', '{}'::jsonb, '[]'::jsonb, '[]'::jsonb, ''::bytea) and frozen_request is null),
  -- and no operation begins erased
  add constraint erased_has_ended check (erased_at is null or ended_at is not null);
alter table sheets drop constraint sheets_check;
alter table sheets add constraint sheet_or_nothing check (digest = sha256(document) or document = '');
create trigger sheets_begin before insert on sheets for each row when (new.document = '') execute function refuse_change();

-- The one change that `operations_guard` does not see.
create function erasure_guard() returns trigger language plpgsql set search_path = public, pg_temp as $$
declare
  emptied constant text[] := array['requested_by', 'token', 'arguments', 'evidence', 'distinct_from', 'canonical',
                                   'frozen_request', 'erased_at'];
begin
  if old.erased_at is not null or old.ended_at is null or old.next_step <> '' then
    raise exception 'operation % is not erased: it was before, or something is still to be done', old.operation_id
      using errcode = 'EL002';
  end if;
  if to_jsonb(old) - emptied <> to_jsonb(new) - emptied then
    raise exception 'an erasure of operation % changes nothing else', old.operation_id using errcode = 'EL002';
  end if;
  new.erased_at := ledger_now();
  return new;
end $$;
drop trigger operations_guard on operations;
create trigger operations_begin before insert on operations for each row execute function operations_guard();
create trigger operations_guard before update on operations for each row
  when (old.erased_at is not distinct from new.erased_at) execute function operations_guard();
create trigger erasure_guard before update on operations for each row
  when (old.erased_at is distinct from new.erased_at) execute function erasure_guard();

-- Facts about an erased operation: the columns that a trigger names are emptied, or lose a part of their JSON; none gains
-- anything, and no other column changes.
create function facts_emptied() returns trigger language plpgsql set search_path = public, pg_temp as $$
declare
  was constant jsonb := to_jsonb(old);
  remains constant jsonb := to_jsonb(new);
  about constant uuid := coalesce(was ->> 'operation_id', was ->> 'stream')::uuid;
  name text;
begin
  if not exists (select from operations where operation_id = about and erased_at is not null)
     or was - tg_argv <> remains - tg_argv then
    raise exception '% is append-only', tg_table_name using errcode = 'EL002';
  end if;
  foreach name in array tg_argv loop
    if remains ->> name not in ('', '\x') and not (remains ->> name)::jsonb <@ (was ->> name)::jsonb then
      raise exception '% of % gains nothing', name, tg_table_name using errcode = 'EL002';
    end if;
  end loop;
  return new;
end $$;

drop trigger events_append_only on events;
create trigger events_append_only before delete on events for each row execute function refuse_change();
create trigger events_emptied before update on events for each row execute function facts_emptied('body');
drop trigger sightings_append_only on sightings;
create trigger sightings_append_only before delete on sightings for each row execute function refuse_change();
create trigger sightings_emptied before update on sightings for each row execute function facts_emptied('effects', 'detail');
drop trigger sheets_append_only on sheets;
create trigger sheets_append_only before delete on sheets for each row execute function refuse_change();
create trigger sheets_emptied before update on sheets for each row execute function facts_emptied('document');
drop trigger statements_append_only on statements;
create trigger statements_append_only before delete on statements for each row execute function refuse_change();
create trigger statements_emptied before update on statements for each row
  execute function facts_emptied('statement', 'proof');

-- An attempt's detail, and nothing else, is emptied: the rest of what happens to attempts is as before.
drop trigger attempts_guard on attempts;
create trigger attempts_begin before insert on attempts for each row execute function attempts_guard();
create trigger attempts_guard before update on attempts for each row
  when (old.detail = '{}' or new.detail <> '{}' or to_jsonb(old) - 'detail' <> to_jsonb(new) - 'detail')
  execute function attempts_guard();
create trigger attempts_emptied before update on attempts for each row
  when (old.detail <> '{}' and new.detail = '{}' and to_jsonb(old) - 'detail' = to_jsonb(new) - 'detail')
  execute function facts_emptied('detail');

-- Events of the inbox are ids and times. Taken ones are forgotten after a month: no provider delivers so late, and one that
-- came again would wake somebody, who looks.
create function inbox_kept() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if old.taken_at is null or old.received_at > ledger_now() - interval '30 days' then
    raise exception 'event % is kept until a month after it came', old.number using errcode = 'EL002';
  end if;
  return old;
end $$;
drop trigger inbox_kept on inbox_events;
create trigger inbox_kept before delete on inbox_events for each row execute function inbox_kept();
