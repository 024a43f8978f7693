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
-- Wait until nobody else writes versions; until the end of the transaction.
SELECT pg_advisory_xact_lock(7232593182);

-- name: look
-- Index stretches, find copies, note claims, tell the active version.
SELECT copy_partition, copy_seq, first_seq, first_content
FROM headrace_look(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: indexed
-- Up to where a partition is indexed.
SELECT upto FROM headrace_place WHERE topic = %s AND partition = %s;
-- name: present
-- Which of some ids are indexed.
SELECT DISTINCT event FROM headrace_first WHERE event = ANY (%s::uuid[]);
-- name: find
-- Where an id lies, in every partition that has it.
SELECT topic, partition, seq, root, depth FROM headrace_first JOIN headrace_place ON headrace_place.id = place
WHERE event = %s ORDER BY topic, partition;
-- name: firsts_drop
-- Forget all ids and up to where anything is indexed; places first, as a look has them first.
TRUNCATE headrace_place, headrace_first, headrace_conflict;

-- name: claims
-- What is in hand.
SELECT subscription, partition, after, upto, owner FROM headrace_claim WHERE subscription = %s AND after < upto
ORDER BY partition;
-- name: take_over
-- From now on only claims of this worker count; answers what was in hand, and in whose.
SELECT * FROM headrace_take_over(%s, %s, %s);
-- name: hand_over
-- Nothing is in hand any more, and nobody may claim before it is taken over.
UPDATE headrace_claim SET after = 0, upto = 0, owner = '' WHERE subscription = %s AND partition = %s AND owner = %s;
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

-- name: active
-- The active version of a handler, and how far the log of versions is applied: one row in any case.
SELECT (SELECT active FROM headrace_handler WHERE name = %s), coalesce((SELECT upto FROM headrace_applied), 0);
-- name: versions_upto
-- Which log of versions is applied, and up to where.
SELECT log, upto FROM headrace_applied;
-- name: versions_upto_put
-- Note up to where the log of versions is applied.
INSERT INTO headrace_applied (log, upto) VALUES (%s::uuid, %s)
ON CONFLICT (id) DO UPDATE SET log = excluded.log, upto = excluded.upto;
-- name: models_drop
-- Forget all models, before they are written anew.
DELETE FROM headrace_model;
-- name: handlers_drop
-- Forget all handlers, before they are written anew.
DELETE FROM headrace_handler;
-- name: versions_drop
-- Forget all versions, before they are written anew.
DELETE FROM headrace_version;
-- name: model_put
-- Write a model version under its number.
INSERT INTO headrace_model (id, name, epoch, declared, digest, offered_us) VALUES (%s, %s, %s, %s, %s, %s);
-- name: handler_put
-- Write a handler under its number.
INSERT INTO headrace_handler (id, name, active) VALUES (%s, %s, %s);
-- name: version_put
-- Write a handler version under its number.
INSERT INTO headrace_version (id, handler, declared, model, offered_us) VALUES (%s, %s, %s, %s, %s);
