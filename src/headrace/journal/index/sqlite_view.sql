-- What those who look into a log ask of its index in SQLite: each query with a name and a sentence.

-- name: topics
-- The topics that apps have used, by the cluster's ids.
SELECT id, name FROM topic ORDER BY name;
-- name: topic_put
-- Make a topic known.
INSERT OR REPLACE INTO topic (id, name) VALUES (?, ?);
-- name: meta_get
-- A fact about the index.
SELECT value FROM meta WHERE name = ?;
-- name: meta_add
-- Note a fact about the index, unless it is noted.
INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?);
-- name: places
-- Up to where each partition is indexed.
SELECT topic, partition, upto FROM place ORDER BY topic, partition;
-- name: counts
-- Events (first positions, and ids that other content has taken) within bounds, given as a JSON array of
-- number, partition, first offset, first offset beyond.  One pass over all ids, each compared with all bounds of
-- its partition: for a few.
WITH bound (number, place, after, upto) AS MATERIALIZED (
    SELECT each.value ->> 0, place.id, each.value ->> 2, each.value ->> 3 FROM json_each(?2) AS each
    JOIN place ON place.topic = ?1 AND place.partition = each.value ->> 1)
SELECT bound.number, count(*) FROM (SELECT place, seq FROM first UNION ALL SELECT place, seq FROM conflict) AS event
CROSS JOIN bound ON bound.place = event.place AND event.seq >= bound.after AND event.seq < bound.upto
GROUP BY bound.number;
-- name: befores
-- How many events of its partition lie before each of several cuts, given as a JSON array of partition and
-- offset.  All ids are put in order once, whatever the number of cuts.
WITH cut (place, seq) AS MATERIALIZED (
    SELECT place.id, each.value ->> 1 FROM json_each(?2) AS each
    JOIN place ON place.topic = ?1 AND place.partition = each.value ->> 0)
SELECT place.partition, told.seq, told.before FROM (
    SELECT event.place, event.seq, event.cuts, sum(1 - event.cuts) OVER (
        PARTITION BY event.place ORDER BY event.seq, event.cuts DESC ROWS UNBOUNDED PRECEDING) AS before
    FROM (SELECT place, seq, 1 AS cuts FROM cut
        UNION ALL SELECT place, seq, 0 FROM first WHERE place IN (SELECT place FROM cut)
        UNION ALL SELECT place, seq, 0 FROM conflict WHERE place IN (SELECT place FROM cut)) AS event
) AS told JOIN place ON place.id = told.place WHERE told.cuts;
-- name: between
-- Ids between two, and where they lie.
SELECT event, topic, partition, seq, root, depth FROM first JOIN place ON place.id = first.place
WHERE event BETWEEN ? AND ? ORDER BY event, topic, partition LIMIT ?;
-- name: chain
-- The events of a chain, causes before effects.
SELECT event, topic, partition, seq, root, depth FROM first JOIN place ON place.id = first.place
WHERE root = ? ORDER BY depth, event, topic LIMIT ?;
-- name: first_of
-- Where an id was seen first in a partition, by the partition's own name.
SELECT seq, content FROM first JOIN place ON place.id = first.place WHERE event = ? AND topic = ? AND partition = ?;
-- name: ids
-- The ids of a partition after one, in the order of ids.
SELECT event, seq FROM first WHERE place = (SELECT id FROM place WHERE topic = ?1 AND partition = ?2) AND event > ?3
ORDER BY event LIMIT ?4;
-- name: claims
-- What is in hand, of all subscriptions.
SELECT subscription, partition, after, upto, owner FROM claim WHERE after < upto ORDER BY subscription, partition;

-- name: place_back
-- Say of a partition that it is indexed up to where the log begins.
UPDATE place SET upto = ?3 WHERE topic = ?1 AND partition = ?2;
-- name: places_drop
-- Forget how far everything is indexed.
UPDATE place SET upto = 0;
-- name: firsts_drop
-- Forget the ids that lie where the log still has them; those below cannot be made again.
DELETE FROM first WHERE seq >= (SELECT upto FROM place WHERE place.id = first.place);
-- name: conflicts_drop
-- The same for ids that other content has taken.
DELETE FROM conflict WHERE seq >= (SELECT upto FROM place WHERE place.id = conflict.place);
