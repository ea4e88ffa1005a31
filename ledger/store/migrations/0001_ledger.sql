-- The ledger: one row per intended effect, and append-only facts beside it.
-- Refusals raised here: EL001 illegal move, EL002 identity or history changed, EL003 a definite outcome changed,
-- EL004 a webhook of an account that nobody is bound to.
-- Every function pins its search path with pg_temp last: otherwise a session could put a temporary `edges`, `clock` or
-- `operations` before the real one, and the guards below would believe it.

-- The worker's role moves along edges and adds facts; it owns nothing. Logins are granted this role.
do $$ begin
  -- asked for first: where a database administrator made the role, the owner needs no right to make one
  if not exists (select from pg_roles where rolname = 'effects_worker') then
    create role effects_worker nologin;
  end if;
exception when duplicate_object or unique_violation then null;
end $$;
-- The inbox faces the internet: its role can add a verified event, and read nothing.
do $$ begin
  if not exists (select from pg_roles where rolname = 'effects_inbox') then
    create role effects_inbox nologin;
  end if;
exception when duplicate_object or unique_violation then null;
end $$;

-- Identity -----------------------------------------------------------------------------------------------------

-- One row: who this ledger is. Operation ids derive from `namespace`, so a restored backup derives the same ids and keys.
-- Its event stream (stream = namespace) tells what concerns no single operation: configuration, holds.
create table ledger_identity (
  singleton boolean primary key default true check (singleton),
  namespace uuid not null default gen_random_uuid(),
  event_count bigint not null default 0,
  head_hash bytea not null default ''
);
insert into ledger_identity default values;

-- The row exists only after `effects migrate --test-clock`; a worker outside a dev stack refuses to start if it does.
create table clock (
  singleton boolean primary key default true check (singleton),
  shift interval not null default '0'
);

create table edges (
  number int not null,
  source text,
  target text not null,
  unique nulls not distinct (number, source, target)
);
insert into edges (number, source, target) values
  (1, null, 'proposed'),
  (2, 'proposed', 'awaiting_approval'),
  (3, 'proposed', 'approved'),
  (4, 'proposed', 'blocked'),
  (5, 'awaiting_approval', 'approved'),
  (6, 'awaiting_approval', 'blocked'),
  (7, 'approved', 'in_flight'),
  (8, 'approved', 'blocked'),
  (9, 'approved', 'awaiting_approval'),
  (10, 'in_flight', 'succeeded'),
  (11, 'in_flight', 'rejected'),
  (12, 'in_flight', 'approved'),
  (13, 'in_flight', 'unknown'),
  (14, 'unknown', 'in_flight'),
  (15, 'unknown', 'succeeded'),
  (16, 'unknown', 'rejected'),
  (17, 'unknown', 'approved'),
  (18, 'unknown', 'needs_review'),
  (19, 'needs_review', 'succeeded'),
  (20, 'needs_review', 'rejected'),
  (21, 'needs_review', 'undetermined'),
  (22, 'needs_review', 'unknown'),
  (23, 'needs_review', 'rejected'),
  (23, 'needs_review', 'approved');

-- Configuration ------------------------------------------------------------------------------------------------

-- Immutable versions; workers read only these. Written by the owner's role.
create table config_versions (
  version int primary key check (version > 0),
  digest bytea not null,
  document bytea not null,
  applied_by text not null,
  applied_at timestamptz not null,
  check (digest = sha256(document))
);
-- The version in force. Claims lock this row `for share`, so a revocation waits for a running claim or is seen by it.
create table config_current (
  singleton boolean primary key default true check (singleton),
  version int not null references config_versions
);
-- Definer: a row lock needs the right to update, which no worker has on configuration.
create function lock_config() returns int language sql volatile security definer
  set search_path = public, pg_temp as $$
  select version from config_current for share
$$;

-- Operations ---------------------------------------------------------------------------------------------------

create table operations (
  operation_id uuid primary key,
  tenant text not null check (tenant ~ '^[a-z0-9-]{1,40}$'),
  business_key text not null check (business_key ~ '^[A-Za-z0-9._/-]{1,120}$'),
  actor text not null,
  requested_by text not null,
  action text not null,
  provider text not null,
  account text not null,
  livemode boolean not null,
  target text not null,
  arguments jsonb not null,
  amount_minor bigint check (amount_minor > 0 and amount_minor <= 9007199254740991),
  currency text check (currency ~ '^[a-z]{3}$'),
  expected_version text,
  evidence jsonb not null,
  distinct_from jsonb not null,
  depends_on jsonb not null, -- what must have ended, and how, before this one is sent; asked again at every first claim
  supersedes uuid references operations, -- the ended operation that this one revises
  equivalence_key text not null,
  policy_version text not null,
  config_version int not null references config_versions,
  canonical bytea not null,
  request_digest bytea not null check (length(request_digest) = 32),
  fingerprint bytea not null,
  approval_expires_at timestamptz not null,
  idempotency_key text not null unique check (length(idempotency_key) between 8 and 255),
  proposed_at timestamptz not null,
  kid text not null, -- the service key that proposed it: revoked, it binds every later send
  token text not null default '', -- the signed proposal, as it came: who proposed can be verified again at any later day

  state text not null,
  reason text not null default '',
  people_needed int check (people_needed >= 0), -- null until judged; 0 where the rule waives the person
  waived_at timestamptz, -- set by the guard on edge 3: the day's waivers count from here, not from the proposal
  fence int not null default 0 check (fence >= 0),
  lease_until timestamptz,
  -- json, not jsonb: a repeat sends these bytes again, in this order
  frozen_request json,
  frozen_contract json,
  first_claimed_at timestamptz,
  ended_at timestamptz,
  next_step text not null default '',
  next_step_at timestamptz,
  review_at timestamptz,
  look_again_at timestamptz,
  receipt text,
  standing text check (standing in ('good', 'pending', 'void')),
  contradicted boolean not null default false,
  event_count bigint not null default 0,
  head_hash bytea not null default '',

  check ((amount_minor is null) = (currency is null)),
  check ((state = 'in_flight') = (lease_until is not null)),
  check ((state in ('succeeded', 'rejected', 'undetermined', 'blocked')) = (ended_at is not null)),
  -- no success without the provider's own id
  check (state <> 'succeeded' or (receipt is not null and standing is not null)),
  -- what was approved is what these bytes say; a claim recomputes it, and no row can ever disagree
  constraint fingerprint_of_canonical
    check (fingerprint = sha256(convert_to(E'effect-ledger/operation/v1\n', 'UTF8') || canonical)),
  -- an intent that ended is revised once: the next revision supersedes the last
  constraint one_revision unique (supersedes),
  -- one operation for one intent: the same key is never a second one
  constraint one_operation_per_intent unique (tenant, business_key)
);
-- a receipt belongs to one operation
create unique index one_operation_per_receipt on operations (provider, account, receipt) where receipt is not null;
-- reservations and equivalence are read under the target lock
create index operations_on_target on operations (provider, account, livemode, target);
-- open work only: costs follow what is unsettled, not what was ever done
create index operations_open on operations (next_step_at) where ended_at is null;
create index operations_waived_by_actor on operations (tenant, actor, waived_at) where waived_at is not null;

-- what rests on an operation is found from it
create index operations_that_depend on operations using gin (depends_on jsonb_path_ops) where depends_on <> '[]';

-- The target lock: reservations on one (provider, account, livemode, target) happen one after another, whatever the tenant.
create table targets (
  provider text not null,
  account text not null,
  livemode boolean not null,
  target text not null,
  primary key (provider, account, livemode, target)
);

create function lock_target(p text, a text, l boolean, t text) returns void
  language plpgsql security definer
  set search_path = public, pg_temp as $$
begin
  insert into targets (provider, account, livemode, target) values (p, a, l, t) on conflict do nothing;
  perform 1 from targets where (provider, account, livemode, target) = (p, a, l, t) for update;
end $$;

create table attempts (
  operation_id uuid not null references operations,
  number int not null check (number > 0),
  claimed_at timestamptz not null,
  lease_until timestamptz not null,
  worker text not null,
  outcome text check (outcome in ('applied', 'refused', 'no_effect', 'unknown')),
  hint text not null default '',
  stored boolean not null default false,
  receipt text,
  standing text check (standing in ('good', 'pending', 'void')),
  answered_at timestamptz,
  late_send_at timestamptz,
  detail jsonb not null default '{}',
  primary key (operation_id, number),
  check (outcome is distinct from 'applied' or (receipt is not null and standing is not null))
);
-- one open attempt at a time: requests of one operation are serialized
create unique index one_open_attempt on attempts (operation_id) where outcome is null;

create table sightings (
  operation_id uuid not null references operations,
  number bigint not null, -- the event that recorded it
  began_at timestamptz not null,
  finished_at timestamptz not null check (finished_at >= began_at),
  complete boolean not null,
  effects jsonb not null,
  version_moved boolean,
  witness_has_marker boolean,
  detail jsonb not null default '{}',
  primary key (operation_id, number)
);

-- What approvers sign on; only a sheet that stands here can be signed.
create table sheets (
  digest bytea primary key check (digest = sha256(document)),
  operation_id uuid not null references operations,
  document bytea not null,
  made_at timestamptz not null
);
create index sheets_of_operation on sheets (operation_id, made_at);

-- Signed sentences of people, as accepted: exactly the bytes, the proof and the sheet.
create table statements (
  jti text primary key, -- the same sentence again is a success, other bytes under its jti are refused
  operation_id uuid references operations,
  scope text not null default '',
  typ text not null,
  decision text not null,
  person text not null,
  kid text not null,
  statement bytea not null,
  scheme text not null,
  proof text not null,
  sheet bytea references sheets (digest),
  trail_head bytea,
  config_version int not null references config_versions,
  accepted_at timestamptz not null
);
create index statements_of_operation on statements (operation_id, accepted_at);

-- Sending stopped. One row a scope ('all', 'tenant:…', 'provider:…', 'operation:…'), locked `for share` by every claim,
-- so a hold waits for a running claim or is seen by it.
create table holds (
  scope text primary key,
  held boolean not null default false,
  since timestamptz,
  statement text references statements (jti),
  reason text not null default ''
);
insert into holds (scope) values ('all');

-- Trail --------------------------------------------------------------------------------------------------------

create table events (
  stream uuid not null,
  number bigint not null,
  at timestamptz not null,
  kind text not null,
  edge int,
  source text,
  target text,
  fence int not null default 0,
  body text not null, -- canonical JSON; the chain holds its digest, so that erasing a personal field breaks nothing
  body_digest bytea not null,
  previous_hash bytea not null,
  hash bytea not null,
  primary key (stream, number),
  check ((kind = 'moved') = (edge is not null))
);
create index events_by_time on events (at);

-- The ledger's time: read after locks are held, moved only by the owner-only clock row, and always later than the last
-- event: what is decided on an event comes after it, even while a wall clock that was set back catches up.
create function ledger_now() returns timestamptz language sql volatile set search_path = public, pg_temp as $$
  select greatest(
    clock_timestamp() + coalesce((select shift from clock), interval '0'),
    (select at + interval '1 microsecond' from events order by at desc limit 1)
  )
$$;

-- Token times bound acceptance: 120 s leeway either way, and no sentence may live longer than policy allows.
create function token_refusal(iat bigint, exp bigint, longest_seconds bigint) returns text language sql volatile
  set search_path = public, pg_temp as $$
  select case
    when to_timestamp(iat) > ledger_now() + interval '120 seconds' then 'not_yet_valid'
    when to_timestamp(exp) < ledger_now() - interval '120 seconds' then 'expired'
    when exp - iat > longest_seconds then 'lives_too_long'
    else ''
  end
$$;

-- Numbers, times and chains every event, and moves the head on its stream. Definer: no role can write a head by itself.
create function events_chain() returns trigger language plpgsql security definer
  set search_path = public, pg_temp as $$
declare
  count_before bigint;
  head_before bytea;
  stands text;
  under int;
begin
  select event_count, head_hash, state, fence into count_before, head_before, stands, under
    from operations where operation_id = new.stream for update;
  if not found then
    select event_count, head_hash into count_before, head_before
      from ledger_identity where namespace = new.stream for update;
    if not found then
      raise exception 'no stream %', new.stream using errcode = 'EL002';
    end if;
  end if;
  -- the trail tells every move once, as it was made: along an edge, from where the last one ended, to where it stands
  if new.kind = 'moved' and (
       (new.target, new.fence) is distinct from (stands, under)
       or new.source is distinct from
          (select target from events where stream = new.stream and kind = 'moved' order by number desc limit 1)
       or not exists (select from edges
                       where number = new.edge and source is not distinct from new.source and target = new.target)) then
    raise exception 'operation % made no move % from % to %', new.stream, new.edge, new.source, new.target
      using errcode = 'EL001';
  end if;
  new.number := count_before + 1;
  new.at := ledger_now();
  new.body_digest := sha256(convert_to(new.body, 'UTF8'));
  new.previous_hash := head_before;
  new.hash := sha256(
    head_before
    || sha256(convert_to(concat_ws(E'\n', new.stream, new.number,
         (extract(epoch from new.at) * 1000000)::bigint, new.kind,
         coalesce(new.edge::text, ''), coalesce(new.source, ''), coalesce(new.target, ''), new.fence), 'UTF8'))
    || new.body_digest);
  update operations set event_count = new.number, head_hash = new.hash where operation_id = new.stream;
  if not found then
    update ledger_identity set event_count = new.number, head_hash = new.hash where namespace = new.stream;
  end if;
  return new;
end $$;
create trigger events_chain before insert on events for each row execute function events_chain();

-- Inbox --------------------------------------------------------------------------------------------------------

-- What providers told by webhook, verified: a reason to look, never a fact about an effect. Ids and times, no body.
create table inbox_events (
  number bigint generated always as identity primary key,
  provider text not null,
  event_id text not null check (length(event_id) between 1 and 255),
  account text not null,
  livemode boolean not null,
  type text not null check (length(type) between 1 and 100),
  created_at timestamptz not null, -- by the provider's clock
  received_at timestamptz not null,
  receipt text,
  target text,
  marker uuid, -- the operation that the effect names
  body_digest bytea not null check (length(body_digest) = 32),
  taken_at timestamptz, -- when whoever it concerns had been woken
  woken uuid[],

  check ((taken_at is null) = (woken is null)),
  -- a provider delivers an event more than once: it is kept once
  constraint one_event unique (provider, event_id)
);
-- costs follow what waits, not what was ever received
create index inbox_untaken on inbox_events (number) where taken_at is null;

-- Definer: the inbox's role reads neither the configuration nor the clock.
create function inbox_guard() returns trigger language plpgsql security definer
  set search_path = public, pg_temp as $$
begin
  if tg_op = 'INSERT' then
    if not exists (
         select from config_current as c join config_versions as v on v.version = c.version,
                jsonb_array_elements(convert_from(v.document, 'UTF8')::jsonb -> 'bindings') as b
          where b ->> 'provider' = new.provider and b ->> 'account' = new.account
            and (b -> 'livemode')::boolean = new.livemode) then
      raise exception 'nobody is bound to % at % (livemode %)', new.account, new.provider, new.livemode
        using errcode = 'EL004';
    end if;
    if num_nonnulls(new.taken_at, new.woken) > 0 then
      raise exception 'an event begins untaken' using errcode = 'EL002';
    end if;
    new.received_at := ledger_now();
    return new;
  end if;
  -- what was received stays, and is taken once
  if old.taken_at is not null or new.woken is null
     or (old.number, old.provider, old.event_id, old.account, old.livemode, old.type, old.created_at, old.received_at,
         old.receipt, old.target, old.marker, old.body_digest)
        is distinct from
        (new.number, new.provider, new.event_id, new.account, new.livemode, new.type, new.created_at, new.received_at,
         new.receipt, new.target, new.marker, new.body_digest) then
    raise exception 'event % is append-only', old.number using errcode = 'EL002';
  end if;
  new.taken_at := ledger_now();
  return new;
end $$;
create trigger inbox_guard before insert or update on inbox_events for each row execute function inbox_guard();

-- Second locks -------------------------------------------------------------------------------------------------

create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'EL002';
end $$;
create trigger events_append_only before update or delete on events for each row execute function refuse_change();
create trigger events_no_truncate before truncate on events for each statement execute function refuse_change();
create trigger sightings_append_only before update or delete on sightings for each row execute function refuse_change();
create trigger sheets_append_only before update or delete on sheets for each row execute function refuse_change();
create trigger statements_append_only before update or delete on statements for each row execute function refuse_change();
create trigger config_append_only before update or delete on config_versions for each row execute function refuse_change();
create trigger edges_append_only before update or delete on edges for each row execute function refuse_change();
create trigger operations_kept before delete on operations for each row execute function refuse_change();
create trigger attempts_kept before delete on attempts for each row execute function refuse_change();
create trigger inbox_kept before delete on inbox_events for each row execute function refuse_change();
create trigger inbox_no_truncate before truncate on inbox_events for each statement execute function refuse_change();

create function operations_guard() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if tg_op = 'INSERT' then
    if not exists (select from edges where source is null and target = new.state) then
      raise exception 'an operation cannot begin as %', new.state using errcode = 'EL001';
    end if;
    -- and brings no past: no worker can insert a number of events, a head, a fence, a claim or a receipt
    if (new.reason, new.fence, new.contradicted, new.event_count, new.head_hash) <> ('', 0, false, 0, ''::bytea)
       or num_nonnulls(new.people_needed, new.waived_at, new.lease_until, new.frozen_request, new.frozen_contract, new.first_claimed_at,
                       new.ended_at, new.review_at, new.look_again_at, new.receipt, new.standing) > 0 then
      raise exception 'an operation begins with nothing done' using errcode = 'EL001';
    end if;
    return new;
  end if;
  -- identity never changes, whoever asks
  if (old.operation_id, old.tenant, old.business_key, old.actor, old.requested_by, old.action, old.provider, old.account,
      old.livemode, old.target, old.arguments, old.amount_minor, old.currency, old.expected_version, old.evidence,
      old.distinct_from, old.depends_on, old.supersedes, old.equivalence_key, old.policy_version, old.config_version, old.canonical,
      old.request_digest, old.fingerprint, old.approval_expires_at, old.idempotency_key, old.proposed_at, old.kid, old.token)
     is distinct from
     (new.operation_id, new.tenant, new.business_key, new.actor, new.requested_by, new.action, new.provider, new.account,
      new.livemode, new.target, new.arguments, new.amount_minor, new.currency, new.expected_version, new.evidence,
      new.distinct_from, new.depends_on, new.supersedes, new.equivalence_key, new.policy_version, new.config_version, new.canonical,
      new.request_digest, new.fingerprint, new.approval_expires_at, new.idempotency_key, new.proposed_at, new.kid, new.token) then
    raise exception 'identity of operation % is immutable', old.operation_id using errcode = 'EL002';
  end if;
  if (old.frozen_request is not null and old.frozen_request::text is distinct from new.frozen_request::text)
     or (old.frozen_contract is not null and old.frozen_contract::text is distinct from new.frozen_contract::text)
     or (old.receipt is not null and old.receipt is distinct from new.receipt)
     or (old.first_claimed_at is not null and old.first_claimed_at is distinct from new.first_claimed_at) then
    raise exception 'frozen columns of operation % are immutable', old.operation_id using errcode = 'EL002';
  end if;
  if new.state <> old.state and not exists (select from edges where source = old.state and target = new.state) then
    raise exception 'no edge from % to %', old.state, new.state using errcode = 'EL001';
  end if;
  -- what it depends on has ended as it must, and stands: else it is not sent, whatever a worker believes
  if old.state = 'approved' and new.state = 'in_flight' and exists (
       select from jsonb_array_elements(new.depends_on) as need
         left join operations as needed on needed.operation_id = (need ->> 'operation_id')::uuid
        where needed.state is distinct from need ->> 'state' or needed.contradicted
           or (needed.state = 'succeeded' and needed.standing = 'void')) then
    raise exception 'operation % depends on what has not ended as it must', old.operation_id using errcode = 'EL001';
  end if;
  -- the fence rises by one with every claim and never otherwise
  if new.fence <> old.fence + (new.state = 'in_flight' and old.state <> 'in_flight')::int then
    raise exception 'fence % cannot follow % on the way to %', new.fence, old.fence, new.state using errcode = 'EL001';
  end if;
  new.waived_at := case when old.state = 'proposed' and new.state = 'approved' then ledger_now() else old.waived_at end;
  return new;
end $$;
create trigger operations_guard before insert or update on operations for each row execute function operations_guard();

-- Move and event stand in one transaction: at commit, the last move in the trail ends where the operation stands.
create function operations_told() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if (select target from events where stream = new.operation_id and kind = 'moved' order by number desc limit 1)
     is distinct from (select state from operations where operation_id = new.operation_id) then
    raise exception 'operation % moved without an event', new.operation_id using errcode = 'EL001';
  end if;
  return null;
end $$;
create constraint trigger operations_told after insert or update of state on operations
  deferrable initially deferred for each row execute function operations_told();

create function attempts_guard() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  if tg_op = 'INSERT' then
    -- an attempt is the claim that was just made: open, and numbered by the fence
    if num_nonnulls(new.outcome, new.receipt, new.standing, new.answered_at, new.late_send_at) > 0
       or not exists (select from operations where operation_id = new.operation_id
                       and state = 'in_flight' and fence = new.number and lease_until = new.lease_until) then
      raise exception 'attempt % of operation % is not its claim', new.number, new.operation_id using errcode = 'EL001';
    end if;
    return new;
  end if;
  if (old.operation_id, old.number, old.claimed_at, old.lease_until, old.worker)
     is distinct from (new.operation_id, new.number, new.claimed_at, new.lease_until, new.worker) then
    raise exception 'a claim is immutable' using errcode = 'EL002';
  end if;
  -- an outcome goes once from none or unknown to a definite one
  if old.outcome in ('applied', 'refused', 'no_effect') and old is distinct from new then
    raise exception 'attempt % already has the outcome %', old.number, old.outcome using errcode = 'EL003';
  end if;
  if old.outcome = 'unknown' and new.outcome is null then
    raise exception 'attempt % cannot open again', old.number using errcode = 'EL003';
  end if;
  -- a request that left late closes D7 and edge 20 for good
  if old.late_send_at is not null and old.late_send_at is distinct from new.late_send_at then
    raise exception 'attempt % left late, and that stays', old.number using errcode = 'EL003';
  end if;
  return new;
end $$;
create trigger attempts_guard before insert or update on attempts for each row execute function attempts_guard();

-- Privileges of the worker: along the edges, and add facts. Nothing else.
grant select on all tables in schema public to effects_worker;
grant insert on operations, attempts, sightings, sheets, statements, holds, events to effects_worker;
grant update (state, reason, people_needed, fence, lease_until, frozen_request, frozen_contract, first_claimed_at, ended_at, next_step,
              next_step_at, review_at, look_again_at, receipt, standing, contradicted)
  on operations to effects_worker;
grant update (outcome, hint, stored, receipt, standing, answered_at, late_send_at, detail) on attempts to effects_worker;
grant update (held, since, statement, reason) on holds to effects_worker;
grant update (taken_at, woken) on inbox_events to effects_worker;
-- Privileges of the inbox: add what was verified. When, what number and whether it was taken is not for it to say.
grant insert (provider, event_id, account, livemode, type, created_at, receipt, target, marker, body_digest)
  on inbox_events to effects_inbox;
-- Functions are everybody's unless said otherwise, and a stranger that held these locks would stop every claim.
revoke execute on function lock_config(), lock_target(text, text, boolean, text) from public;
grant execute on function lock_config(), lock_target(text, text, boolean, text) to effects_worker;
