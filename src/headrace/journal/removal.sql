-- Queries that take payloads out of the journal, each with a name and a sentence on what it is for.

-- name: held
-- Of these events, those that may not be removed: not finished, or with a dead letter that nobody has decided on.
SELECT event.seq FROM json_each(?2) AS wanted CROSS JOIN event ON event.seq = wanted.value WHERE EXISTS (
    SELECT 1 FROM subscription CROSS JOIN position ON position.sub = subscription.id AND position.tp = event.tp
    WHERE subscription.topic = ?1 AND event.seq > position.start
    AND (subscription.kind <> 'retired' AND (event.seq > position.claimed_after AND (
        NOT EXISTS (SELECT 1 FROM replay WHERE replay.sub = position.sub) OR event.seq <= (SELECT upto FROM allotted WHERE allotted.sub = position.sub AND allotted.tp = event.tp
            AND after < event.seq ORDER BY after DESC LIMIT 1)) OR EXISTS (
        SELECT 1 FROM open WHERE open.sub = position.sub AND open.tp = event.tp AND open.seq = event.seq))
    OR EXISTS (SELECT 1 FROM dead WHERE dead.sub = position.sub AND dead.seq = event.seq AND dead.fate IS NULL)));
-- name: there
-- Of these events, those that still have a payload.
SELECT event.seq FROM json_each(?) AS wanted CROSS JOIN event ON event.seq = wanted.value;
-- name: event
-- One event with all it holds.
SELECT seq, tp, eid, cid, depth, head, body FROM event WHERE seq = ?;
-- name: skeleton_add
-- Keep what is left of events.
INSERT INTO skeleton (seq, tp, eid, cid, depth, head, content, owner, why, removed_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: salt
-- What the hashes of keys are salted with.
SELECT value FROM meta WHERE name = 'salt';
-- name: event_remove
-- Remove events.
DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?));
-- name: positions_of_topic
-- All positions that count every event of a topic, of retired handlers too.
SELECT position.sub, position.tp, position.start, position.high FROM subscription
CROSS JOIN position ON position.sub = subscription.id
WHERE subscription.topic = ? AND subscription.kind IN ('live', 'retired');
-- name: position_gone
-- Count events that are gone; of those that were not taken yet, that they are taken and expired.
UPDATE position SET gone = gone + ?1, taken = taken + ?2, expired = expired + ?2 WHERE sub = ?3 AND tp = ?4;
-- name: ranges
-- Where the version ranges of a partition begin, last first.
SELECT after FROM range WHERE sub = ? AND tp = ? ORDER BY after DESC;
-- name: range_gone
-- Count events of a version range that are gone.
UPDATE range SET gone = gone + ? WHERE sub = ? AND tp = ? AND after = ?;
-- name: letters_strip
-- Take the bytes out of the dead letters of these events, but for those that nobody has decided on.
UPDATE dead SET head = ?3, body = x'', error = '', traceback = '', errors = '[]' WHERE sub = ?1
AND seq IN (SELECT value FROM json_each(?2)) AND fate IS NOT NULL AND length(body) + length(error) > 0;
-- name: bytes_less
-- Take the size of removed events off that of their topic.
UPDATE retention SET bytes = bytes - ? WHERE topic = ?;
-- name: counted
-- Up to where the size of a topic was counted.
SELECT counted FROM retention WHERE topic = ?;
