-- Queries that keep topics within their retention, each with a name and a sentence on what it is for.

-- name: declare
-- Note what an app says of a topic.
INSERT INTO retention (topic, app, age_us, bytes_max, swept_us, counted, bytes) VALUES (?, ?, ?, ?, 0, 0, 0)
ON CONFLICT DO UPDATE SET app = excluded.app, age_us = excluded.age_us, bytes_max = excluded.bytes_max;
-- name: declared
-- The topics that an app has said something of.
SELECT topic.name, age_us, bytes_max FROM retention JOIN topic ON topic.id = retention.topic WHERE app = ?;
-- name: withdraw
-- Forget what an app said of a topic.
DELETE FROM retention WHERE app = ? AND topic = (SELECT id FROM topic WHERE name = ?);
-- name: due
-- Whether nobody has swept a topic since a time; a clock that was set back does not keep it waiting.
SELECT topic FROM retention WHERE topic = ?1 AND (swept_us <= ?2 OR swept_us > ?3);
-- name: begin_sweep
-- Be the one who sweeps a topic, unless somebody was quicker.
UPDATE retention SET swept_us = ?3 WHERE topic = ?1 AND (swept_us <= ?2 OR swept_us > ?3) RETURNING topic;
-- name: size
-- What is counted of a topic: up to which offset, and how many bytes.
SELECT counted, bytes FROM retention WHERE topic = ?;
-- name: uncounted
-- Size and last offset of a page of events that is not counted yet.
SELECT sum(size), max(seq) FROM (
    SELECT seq, length(head) + length(body) AS size FROM event WHERE tp >> 10 = ? AND seq > ? ORDER BY seq LIMIT ?);
-- name: count
-- Note that a page was counted.
UPDATE retention SET counted = ?, bytes = bytes + ? WHERE topic = ?;
-- name: oldest
-- The next events of a topic in commit order: envelope and size.
SELECT seq, head, length(head) + length(body) FROM event WHERE tp >> 10 = ? AND seq > ? ORDER BY seq LIMIT ?;
-- name: outlived
-- What is left of events whose payload was removed before a time.
SELECT seq FROM skeleton WHERE removed_us < ? ORDER BY removed_us LIMIT ?;
-- name: forget
-- Delete it.
DELETE FROM skeleton WHERE seq IN (SELECT value FROM json_each(?));
-- name: forgotten
-- Note the highest offset that nothing is left of: causes at or below it may be missing.
INSERT INTO meta (name, value) VALUES ('forgotten', ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value);
