-- Queries that only look at events, each with a name and a sentence on what it is for.

-- name: begin
-- From the first query on all see the same state.
BEGIN;
-- name: end
-- Let go of it.
COMMIT;
-- name: data_version
-- A number that changes when another connection has committed.
PRAGMA data_version;

-- name: topic_names
-- Names of topics by number.
SELECT id, name FROM topic;
-- name: stamp_value
-- The stamp of a number.
SELECT value FROM stamp WHERE id = ?;
-- name: stamp_values
-- All stamps.
SELECT value FROM stamp;

-- name: last_offset
-- The highest offset.
SELECT coalesce(max(seq), 0) FROM event;
-- name: events
-- Events of all topics above an offset.
SELECT seq, tp, eid, depth, head, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?;
-- name: events_of_topic
-- Events of one topic above an offset, in commit order over its partitions.
SELECT seq, tp, eid, depth, head, body FROM event WHERE tp >> 10 = ?2 AND seq > ?1 ORDER BY seq LIMIT ?3;
-- name: events_before
-- Events of all topics below an offset, newest first.
SELECT seq, tp, eid, depth, head, body FROM event WHERE seq < ? ORDER BY seq DESC LIMIT ?;
-- name: events_of_topic_before
-- Events of one topic below an offset, newest first.
SELECT seq, tp, eid, depth, head, body FROM event
WHERE tp >> 10 = (SELECT id FROM topic WHERE name = ?2) AND seq < ?1 ORDER BY seq DESC LIMIT ?3;
-- name: event_at
-- The event at an offset.
SELECT seq, tp, eid, depth, head, body FROM event WHERE seq = ?;
-- name: events_by_id
-- Events whose id lies between two, or what is left of them; of one topic if one is named.
SELECT * FROM (SELECT seq, tp, eid, depth, head, body, '' FROM event
    WHERE eid BETWEEN ?1 AND ?2 AND (?3 IS NULL OR tp >> 10 = (SELECT id FROM topic WHERE name = ?3))
    ORDER BY eid LIMIT ?4)
UNION ALL SELECT * FROM (SELECT seq, tp, eid, depth, head, x'', why FROM skeleton
    WHERE eid BETWEEN ?1 AND ?2 AND (?3 IS NULL OR tp >> 10 = (SELECT id FROM topic WHERE name = ?3))
    ORDER BY eid LIMIT ?4);
-- name: chain
-- All events of the chain that an offset belongs to, or what is left of them, causes before effects.
WITH root (seq) AS (SELECT CASE cid WHEN 0 THEN seq ELSE cid END FROM event WHERE seq = ?1
    UNION ALL SELECT CASE cid WHEN 0 THEN seq ELSE cid END FROM skeleton WHERE seq = ?1)
SELECT seq, tp, eid, depth, head, body, '' AS why FROM event WHERE seq = (SELECT seq FROM root)
UNION ALL SELECT seq, tp, eid, depth, head, x'', why FROM skeleton WHERE seq = (SELECT seq FROM root)
UNION ALL SELECT * FROM (SELECT seq, tp, eid, depth, head, body, '' FROM event
    WHERE cid <> 0 AND cid = (SELECT seq FROM root) ORDER BY depth, seq LIMIT ?2)
UNION ALL SELECT * FROM (SELECT seq, tp, eid, depth, head, x'', why FROM skeleton
    WHERE cid <> 0 AND cid = (SELECT seq FROM root) ORDER BY depth, seq LIMIT ?2)
ORDER BY depth, seq LIMIT ?2;

-- name: dead_rows
-- Dead letters in short, oldest first.
SELECT reason, code, error, body FROM dead WHERE fate IS NULL ORDER BY id;
