-- Notices: what people must hear of, written in the transaction that made it so, and posted later. None stops a move.

create table notices (
  operation_id uuid not null references operations,
  kind text not null check (kind in ('waiting', 'half_life', 'review', 'contradicted')),
  event_number bigint not null, -- the event that it is about
  due_at timestamptz not null,
  tries int not null default 0,
  ended_at timestamptz, -- posted and acknowledged, or its reason was over before that
  ended text check (ended in ('posted', 'over')),
  problem text not null default '', -- why the last try was not acknowledged: a code, no words of the receiver
  primary key (operation_id, kind, event_number),
  check ((ended_at is null) = (ended is null))
);
-- costs follow what waits, not what was ever told
create index notices_waiting on notices (due_at) where ended_at is null;

-- Definer: whoever may add an event may not make up a notice, nor leave one out.
create function events_notice() returns trigger language plpgsql security definer
  set search_path = public, pg_temp as $$
begin
  if new.kind = 'moved' and new.target = 'awaiting_approval' then
    insert into notices (operation_id, kind, event_number, due_at) values (new.stream, 'waiting', new.number, new.at);
    insert into notices (operation_id, kind, event_number, due_at)
      select new.stream, 'half_life', new.number, new.at + (approval_expires_at - new.at) / 2
        from operations where operation_id = new.stream and approval_expires_at > new.at;
  elsif new.kind = 'moved' and new.target = 'needs_review' then
    insert into notices (operation_id, kind, event_number, due_at) values (new.stream, 'review', new.number, new.at);
  elsif new.kind = 'contradiction' then
    insert into notices (operation_id, kind, event_number, due_at) values (new.stream, 'contradicted', new.number, new.at);
  end if;
  return null;
end $$;
create trigger events_notice after insert on events for each row execute function events_notice();

create trigger notices_kept before delete on notices for each row execute function refuse_change();
create trigger notices_no_truncate before truncate on notices for each statement execute function refuse_change();

grant select on notices to effects_worker;
grant update (due_at, tries, ended_at, ended, problem) on notices to effects_worker;
