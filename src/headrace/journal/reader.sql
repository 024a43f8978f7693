-- Queries that only look, each with a name and a sentence on what it is for.

-- name: topic_names
-- Names of topics by number.
SELECT id, name FROM topic;
-- name: stamp_value
-- The stamp of a number.
SELECT value FROM stamp WHERE id = ?;
-- name: events
-- Events of all topics above an offset.
SELECT seq, tp, eid, depth, head, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?;
-- name: events_of_topic
-- Events of one topic above an offset, in commit order over its partitions.
SELECT seq, tp, eid, depth, head, body FROM event
WHERE seq > ?1 AND +tp >> 10 = (SELECT id FROM topic WHERE name = ?2) ORDER BY seq LIMIT ?3;
-- name: dead_rows
-- Dead letters in short, oldest first.
SELECT reason, code, error, body FROM dead WHERE fate IS NULL ORDER BY id;
