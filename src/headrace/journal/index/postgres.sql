-- The queries of an index in PostgreSQL.

-- name: bounds
-- Have each statement see what is committed, whatever the default, and the server give up a statement, a wait
-- for a lock, or a transaction that nobody goes on with.
SELECT set_config('default_transaction_isolation', 'read committed', false), set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),
set_config('idle_in_transaction_session_timeout', %s, false);
-- name: meta_there
-- Whether the tables are there, as of now: to_regclass may remember that they were not.
SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = 'headrace_meta' AND pg_table_is_visible(oid));
-- name: schema_get
-- The number of the schema.
SELECT value::integer FROM headrace_meta WHERE name = 'schema';
-- name: schema_alone
-- Wait until nobody else makes the tables; until the end of the transaction.
SELECT pg_advisory_xact_lock(7232593181);
-- name: versions_alone
-- Wait until nobody else makes versions known or active; until the end of the transaction.
SELECT pg_advisory_xact_lock(7232593182);

-- name: look
-- Index stretches, find copies, note claims, tell the active version.
SELECT copy_partition, copy_seq, first_seq, first_content
FROM headrace_look(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: indexed
-- Up to where a partition is indexed.
SELECT upto FROM headrace_place WHERE topic = %s AND partition = %s;
-- name: find
-- Where an id lies, in every partition that has it.
SELECT topic, partition, seq, root, depth FROM headrace_first JOIN headrace_place ON headrace_place.id = place
WHERE event = %s ORDER BY topic, partition;
-- name: firsts_drop
-- Forget all ids and up to where anything is indexed; places first, as a look has them first.
TRUNCATE headrace_place, headrace_first, headrace_conflict;

-- name: claims
-- What is in hand.
SELECT subscription, partition, after, upto, owner FROM headrace_claim WHERE subscription = %s ORDER BY partition;
-- name: finished
-- Forget what is closed.
SELECT headrace_finished(%s, %s, %s);
-- name: tried_put
-- Note attempts.
INSERT INTO headrace_tried (subscription, partition, seq, number, crashes)
SELECT %s, %s, * FROM unnest(%s::bigint[], %s::integer[], %s::integer[]) AS made (seq, number, crashes) ORDER BY seq
ON CONFLICT (subscription, partition, seq) DO UPDATE SET number = excluded.number, crashes = excluded.crashes;
-- name: tried
-- The attempts of open offsets.
SELECT seq, number, crashes FROM headrace_tried WHERE subscription = %s AND partition = %s ORDER BY seq;

-- name: handlers
-- The names of all handlers.
SELECT name FROM headrace_handler ORDER BY name;
-- name: handler_get
-- A handler and its active version.
SELECT id, active FROM headrace_handler WHERE name = %s;
-- name: handler_add
-- Make a handler known.
INSERT INTO headrace_handler (name) VALUES (%s) ON CONFLICT DO NOTHING;
-- name: handler_activate
-- Make a version the one that takes events from now on.
UPDATE headrace_handler SET active = %s WHERE name = %s;
-- name: model_get
-- A model version by its bytes.
SELECT id FROM headrace_model WHERE name = %s AND digest = %s;
-- name: model_add
-- Give new bytes the next epoch of their name.
INSERT INTO headrace_model (name, epoch, declared, digest, offered_us)
SELECT new.name, (SELECT coalesce(max(epoch), 0) + 1 FROM headrace_model WHERE name = new.name), %s, %s, %s
FROM (SELECT %s::text) AS new (name) RETURNING id;
-- name: version_get
-- A handler version by what it is made of.
SELECT id FROM headrace_version WHERE handler = %s AND declared = %s AND model = %s;
-- name: version_add
-- Make a handler version known.
INSERT INTO headrace_version (handler, declared, model, offered_us) VALUES (%s, %s, %s, %s) RETURNING id;
-- name: version_info
-- A handler version with its model, for people and for envelopes.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM headrace_version AS version JOIN headrace_handler AS handler ON handler.id = version.handler
LEFT JOIN headrace_model AS model ON model.id = version.model WHERE version.id = %s;
-- name: versions
-- All versions of a handler, oldest first.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM headrace_version AS version JOIN headrace_handler AS handler ON handler.id = version.handler
LEFT JOIN headrace_model AS model ON model.id = version.model WHERE handler.name = %s ORDER BY version.id;
