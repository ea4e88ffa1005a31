-- `effects doctor` under the reader's login: it counts the webhooks and the notices that wait, and reads nothing else of them.
grant select (taken_at) on inbox_events to effects_reader;
grant select (ended_at, tries) on notices to effects_reader;
