-- The audit: where its listing of each provider stands, what it found, and when it last ran to its end.

-- One row per listing (an action's effects in one account and mode): everything created before `listed_until` was compared.
-- While a listing is under way, `began_at` is when it began and `go_on` where its next page begins.
create table audit_places (
  action text not null,
  provider text not null,
  account text not null,
  livemode boolean not null,
  listed_until timestamptz,
  began_at timestamptz,
  go_on text not null default '',
  primary key (action, provider, account, livemode),
  check (began_at is not null or go_on = '')
);

-- Kept when they are gone: what did not fit, and until when, stays readable.
create table audit_findings (
  number bigint generated always as identity primary key,
  kind text not null,
  name text not null, -- a receipt, or a workflow id
  action text not null default '', -- where it was listed; empty for what concerns Temporal
  provider text not null default '',
  account text not null default '',
  livemode boolean not null default false,
  operation_id uuid,
  what text not null,
  found_at timestamptz not null default ledger_now(),
  gone_at timestamptz
);
-- one open finding of a kind about one thing, however often it is found
create unique index one_open_finding on audit_findings (kind, name, action, account, livemode) where gone_at is null;

create table audits (
  number bigint generated always as identity primary key,
  began_at timestamptz not null,
  ended_at timestamptz not null default ledger_now(),
  listed bigint not null check (listed >= 0), -- effects that were compared
  complete boolean not null, -- every listing was read to its end
  left_out text not null default '' -- what was not, and why
);

create trigger audits_append_only before update or delete on audits for each row execute function refuse_change();
create trigger audits_no_truncate before truncate on audits for each statement execute function refuse_change();
create trigger findings_kept before delete on audit_findings for each row execute function refuse_change();
create trigger findings_no_truncate before truncate on audit_findings for each statement execute function refuse_change();

-- what ended with an effect, by when: an audit asks for what its listing did not show
create index operations_with_effect on operations (action, account, livemode, ended_at) where state = 'succeeded' and standing <> 'void';

grant select on audit_places, audit_findings, audits to effects_worker;
grant insert on audit_places, audit_findings, audits to effects_worker;
grant update (listed_until, began_at, go_on) on audit_places to effects_worker;
grant update (what, gone_at) on audit_findings to effects_worker;
