-- What those who look into a log ask of its index in PostgreSQL: each query with a name and a sentence.

-- name: topics
-- The topics that apps have used, by the cluster's ids.
SELECT id, name FROM headrace_topic ORDER BY name;
-- name: topic_put
-- Make a topic known.
INSERT INTO headrace_topic (id, name) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name
WHERE headrace_topic.name <> excluded.name;
-- name: meta_get
-- A fact about the index.
SELECT value FROM headrace_meta WHERE name = %s;
-- name: meta_add
-- Note a fact about the index, unless it is noted.
INSERT INTO headrace_meta (name, value) VALUES (%s, %s) ON CONFLICT DO NOTHING;
-- name: places
-- Up to where each partition is indexed.
SELECT topic, partition, upto FROM headrace_place ORDER BY topic, partition;
-- name: counts
-- Events (first positions, and ids that other content has taken) between cuts, which are given as partitions and
-- offsets: how many lie between the n-th cut of a partition and the next; 0 is before the first.  One pass over
-- all ids, with a step in a sorted list for each: a comparison with each cut took 20 s for 4,000 of 300,000 ids.
WITH cuts (place, seqs) AS MATERIALIZED (
    SELECT place.id, array_agg(asked.seq ORDER BY asked.seq)
    FROM unnest(%s::integer[], %s::bigint[]) AS asked (partition, seq)
    JOIN headrace_place AS place ON place.topic = %s AND place.partition = asked.partition GROUP BY place.id)
SELECT place.partition, told.cut, told.events FROM (
    SELECT event.place, width_bucket(event.seq, cuts.seqs) AS cut, count(*) AS events
    FROM (SELECT place, seq FROM headrace_first UNION ALL SELECT place, seq FROM headrace_conflict) AS event
    JOIN cuts ON cuts.place = event.place GROUP BY event.place, cut
) AS told JOIN headrace_place AS place ON place.id = told.place;
-- name: between
-- Ids between two, and where they lie.
SELECT event, topic, partition, seq, root, depth FROM headrace_first JOIN headrace_place AS place ON place.id = place
WHERE event BETWEEN %s AND %s ORDER BY event, topic, partition LIMIT %s;
-- name: chain
-- The events of a chain, causes before effects.
SELECT event, topic, partition, seq, root, depth FROM headrace_first JOIN headrace_place AS place ON place.id = place
WHERE root = %s ORDER BY depth, event, topic LIMIT %s;
-- name: firsts
-- Where ids were seen first in a partition.
SELECT event, seq, content FROM headrace_first JOIN headrace_place AS place ON place.id = place
WHERE topic = %s AND partition = %s AND event = ANY (%s::uuid[]);
-- name: ids
-- The ids of a partition after one, in the order of ids.
SELECT event, seq FROM headrace_first JOIN headrace_place AS place ON place.id = place
WHERE topic = %s AND partition = %s AND event > %s ORDER BY event LIMIT %s;
-- name: claims
-- What is in hand, of all subscriptions.
SELECT subscription, partition, after, upto, owner FROM headrace_claim WHERE after < upto
ORDER BY subscription, partition;

-- name: patience
-- Give the statements of this transaction more time.
SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true);
-- name: all_drop
-- Forget all ids, and how far anything is indexed; places first, as a look has them first.
TRUNCATE headrace_place, headrace_first, headrace_conflict;
-- name: alone
-- Wait until no look is under way, and let none begin: one that has seen that all it asks for is indexed must
-- find it.
LOCK TABLE headrace_place IN ACCESS EXCLUSIVE MODE;
-- name: places_back
-- Say of partitions that they are indexed up to where the log begins, of others that they are not at all.
UPDATE headrace_place AS place SET upto = coalesce((
    SELECT given.low FROM unnest(%s::uuid[], %s::integer[], %s::bigint[]) AS given (topic, partition, low)
    WHERE given.topic = place.topic AND given.partition = place.partition), 0);
-- name: firsts_drop
-- Forget the ids that lie where the log still has them; those below cannot be made again.
DELETE FROM headrace_first USING headrace_place AS place WHERE place.id = place AND seq >= upto;
-- name: conflicts_drop
-- The same for ids that other content has taken.
DELETE FROM headrace_conflict USING headrace_place AS place WHERE place.id = place AND seq >= upto;
